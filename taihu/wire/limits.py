"""Bounds of what crosses the network."""

__all__ = ["MAX_PAYLOAD_BYTES"]

MAX_PAYLOAD_BYTES = 4 << 20
