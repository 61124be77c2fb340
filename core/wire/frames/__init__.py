"""Frames as bytes, with whom they are of, their kinds, checksums and limits."""
