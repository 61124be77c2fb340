"""A model of the SW26010 processor: kernels as blockings, and what they cost."""
