"""Data sets, checked file by file, and the batches that every rank draws from them."""
