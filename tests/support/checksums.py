"""CRC-32C byte by byte, by its definition: polynomial 0x1EDC6F41, reflected; and frames with such checksums."""

from __future__ import annotations

from taihu.protos import tensor_pb2

__all__ = ["crc32c_by_table", "header_checksum", "signed"]

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


def header_checksum(header: tensor_pb2.Frame.Header) -> int:
    """The checksum that a header should have."""
    plain = tensor_pb2.Frame.Header.FromString(header.SerializeToString())
    plain.ClearField("padding")
    plain.ClearField("checksum")
    return crc32c_by_table(plain.SerializeToString())


def signed(frame: tensor_pb2.Frame) -> tensor_pb2.Frame:
    """`frame`, with the checksums that it should have."""
    frame.header.payload_checksum = crc32c_by_table(frame.payload)
    frame.header.checksum = header_checksum(frame.header)
    return frame
