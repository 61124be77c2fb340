"""Layers, each with its forward and backward."""
