"""Numba kernels of the neural network layers."""
