"""CRC-32C, the checksum of frames: by the processor's instruction where it has one, without Python's lock."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

__all__ = ["checksum_of", "checksum_of_all"]


def checksum_of(content: bytes | memoryview) -> int:
    """The checksum of contiguous memory of any format, 32 bits."""
    return crc32c(content)


def checksum_of_all(pieces: Iterable[bytes | memoryview]) -> int:
    """The checksum of contiguous pieces of memory, one behind the other; 0 of none."""
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return checksum
