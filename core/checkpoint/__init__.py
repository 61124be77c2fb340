"""Checkpoints: what a run needs to go on, between two steps, on disk."""
