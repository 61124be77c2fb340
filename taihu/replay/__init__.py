"""A run whose order was recorded, made again in one process: to the same parameters."""
