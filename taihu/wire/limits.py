"""How large what crosses the network may be."""

__all__ = ["MAX_PAYLOAD_BYTES"]

MAX_PAYLOAD_BYTES = 4 << 20
