"""A model and its training without arrays: layers, losses, scores, names."""
