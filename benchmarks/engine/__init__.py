"""The engine, its memory, and the model of the SW26010."""
