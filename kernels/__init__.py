"""Numba kernels; no I/O, knows nothing of the other packages."""
