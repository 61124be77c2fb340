"""Bounds of what crosses the network."""

MAX_PAYLOAD_BYTES = 4 << 20
MOST_UNSENT_BYTES = 1 << 19
"""Bytes that a connection's kernel takes ahead of what it has sent, which nothing urgent can overtake."""
