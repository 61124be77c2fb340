"""Trained models in files: what a file says, how it is written, how it is read, and what its model predicts."""
