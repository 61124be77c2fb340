"""Compiling and caching of kernels, and parts that several of them share."""
