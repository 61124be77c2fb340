"""CRC-32C byte by byte, by its definition: polynomial 0x1EDC6F41, reflected; and frames with such checksums."""

from __future__ import annotations

__all__ = ["crc32c_by_table"]

_REFLECTED = 0x82F63B78


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_REFLECTED if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]


def crc32c_by_table(content: bytes) -> int:
    """The checksum of `content`."""
    rest = 0xFFFFFFFF
    for byte in content:
        rest = rest >> 8 ^ _TABLE[(rest ^ byte) & 0xFF]
    return rest ^ 0xFFFFFFFF
