"""Headers of frames on a connection of their own: one size for all, little-endian, without the sender.

The last bytes are a union, what belongs to the frame's kind alone, and two checksums: of the payload, and of all
before it. A farewell is said in gRPC's stream, not here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from taihu.core.base.errors import DamagedFrameError, FrameError
from taihu.core.wire.frames.checksum import checksum_of
from taihu.core.wire.frames.headers import Address, At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import (
    ActivationPart,
    Encoding,
    Gradients,
    Kind,
    Parameters,
    Question,
    Rates,
    RingSegment,
    SparseMessage,
    Summed,
)

__all__ = ["HEADER_BYTES", "check_header", "number_in", "pack_header", "unpack_header"]

_MAGIC: Final = 0x74616869
# magic, kind, data type, encoding, number, plan, step, attempt, group, offset, count, selected, payload bytes
_COMMON: Final = "<IBBBBIQIIQQQQ"
_KIND_AT: Final = 4
_NUMBER_AT: Final = 7
_UNION_BYTES: Final = 16
_CHECKSUM: Final = struct.Struct("<I")


@dataclass(frozen=True)
class _Layout:
    """One kind in the union: its number, the header but for its own checksum, and its fields there and back."""

    number: int
    covered: struct.Struct
    fields: Callable[[Any], tuple[float, ...]]
    make: Callable[..., Kind]


def _layout(
    number: int, union: str, fields: Callable[[Any], tuple[float, ...]], make: Callable[..., Kind]
) -> _Layout:
    padding = _UNION_BYTES - struct.calcsize("<" + union)
    return _Layout(number, struct.Struct(f"{_COMMON}{union}{padding}xI"), fields, make)


def _flag(value: int) -> bool:
    if value > 1:
        raise ValueError(value)
    return bool(value)


_LAYOUTS: Final = {
    Gradients: _layout(
        1, "fB", lambda kind: (kind.loss_scale, kind.skipped), lambda scale, skip: Gradients(scale, _flag(skip))
    ),
    Question: _layout(2, "", lambda _: (), Question),
    Summed: _layout(
        3, "dB", lambda kind: (kind.completed_s, kind.skipped), lambda at_s, skip: Summed(at_s, _flag(skip))
    ),
    Parameters: _layout(4, "", lambda _: (), Parameters),
    RingSegment: _layout(5, "II", lambda kind: (kind.hop, kind.gather), RingSegment),
    ActivationPart: _layout(6, "I", lambda kind: (kind.frames,), ActivationPart),
    SparseMessage: _layout(7, "II", lambda kind: (kind.round, kind.part), SparseMessage),
    Rates: _layout(12, "", lambda _: (), Rates),
}
_BY_NUMBER: Final = {layout.number: layout for layout in _LAYOUTS.values()}
_COVERED_BYTES: Final = struct.calcsize(_COMMON) + _UNION_BYTES + _CHECKSUM.size
HEADER_BYTES: Final = _COVERED_BYTES + _CHECKSUM.size


def pack_header(header: FrameHeader, payload_bytes: int, payload_checksum: int, number: int = 0) -> bytes:
    """The header of a frame with so many bytes of payload; its sender is not in it, nor all of its `number`."""
    layout = _LAYOUTS[type(header.kind)]
    at, group, offset, count = header.address
    covered = layout.covered.pack(
        _MAGIC,
        layout.number,
        header.value_type.value,
        header.encoding.value,
        number & 0xFF,
        *at,
        group,
        offset,
        count,
        header.selected,
        payload_bytes,
        *layout.fields(header.kind),
        payload_checksum,
    )
    return covered + _CHECKSUM.pack(checksum_of(covered))


def check_header(buffer: memoryview) -> None:
    """Raise DamagedFrameError unless a header is as it was sent."""
    seen = checksum_of(buffer[:_COVERED_BYTES])
    (expected,) = _CHECKSUM.unpack_from(buffer, _COVERED_BYTES)
    if seen != expected:
        raise DamagedFrameError(f"header with checksum {seen:#010x}: expected {expected:#010x}")


def number_in(buffer: memoryview) -> int:
    """The last eight bits of the number of a frame, by which one that comes twice is known."""
    return buffer[_NUMBER_AT]


def unpack_header(buffer: memoryview, sender: Sender, name: str) -> tuple[FrameHeader, int, int]:
    """A header of `sender` that is as it was sent, and size and checksum of the payload that follows it.

    Raises:
        FrameError: it is none, or makes no sense; the message calls the sender `name`.
    """
    try:
        layout = _BY_NUMBER[buffer[_KIND_AT]]
        magic, _, value_type, encoding, _, plan, step, attempt, group, offset, count, selected, size, *rest = (
            layout.covered.unpack_from(buffer)
        )
        *fields, checksum = rest
        if magic != _MAGIC:
            raise ValueError(magic)
        header = FrameHeader(
            sender,
            Address(At(plan, step, attempt), group, offset, count),
            layout.make(*fields),
            Encoding(encoding),
            ValueType(value_type),
            selected,
        )
    except (KeyError, ValueError, FrameError):
        raise FrameError(f"{name}: not the header of a frame on its connection") from None
    header.check(size)
    return header, size, checksum
