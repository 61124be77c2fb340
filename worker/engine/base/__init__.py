"""The base of the engine: layers and losses as interfaces, threads, buffers, scores."""
