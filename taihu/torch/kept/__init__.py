"""The state of a script: held in memory behind its steps, written now and then, and brought back."""
