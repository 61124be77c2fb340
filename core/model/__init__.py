"""What is said of a model and its training without its arrays: layers, losses, scores, names."""
