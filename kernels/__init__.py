"""Numba kernels and their NumPy oracles; no I/O, knows nothing of the other packages."""
