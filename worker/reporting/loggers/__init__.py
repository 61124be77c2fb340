"""Loggers that rows of a run are handed to, each in a thread of its own."""
