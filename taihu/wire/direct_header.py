"""The header of a frame on a connection of its own: a structure of fixed size, little-endian.

Its last bytes are a union: what belongs to the frame's kind alone. A farewell is said in gRPC's stream, not here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from taihu.errors import FrameError
from taihu.wire.headers import (
    Address,
    At,
    Encoding,
    FrameHeader,
    Gradients,
    Kind,
    Parameters,
    Part,
    Question,
    RingSegment,
    Sender,
    SparseMessage,
    Summed,
    ValueType,
)

__all__ = ["HEADER_BYTES", "pack_header", "unpack_header"]

_MAGIC: Final = 0x74616869
# magic, kind, data type, encoding, plan, step, attempt, group, offset, count, selected, payload bytes
_COMMON: Final = "<IBBBxIQIIQQQQ"
_KIND_AT: Final = 4
_UNION_BYTES: Final = 16


@dataclass(frozen=True)
class _Layout:
    """One kind in the union: its number, the whole header, and its fields there and back."""

    number: int
    whole: struct.Struct
    fields: Callable[[Any], tuple[float, ...]]
    make: Callable[..., Kind]


def _layout(
    number: int, union: str, fields: Callable[[Any], tuple[float, ...]], make: Callable[..., Kind]
) -> _Layout:
    padding = _UNION_BYTES - struct.calcsize("<" + union)
    return _Layout(number, struct.Struct(f"{_COMMON}{union}{padding}x"), fields, make)


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
    Part: _layout(6, "I", lambda kind: (kind.frames,), Part),
    SparseMessage: _layout(7, "II", lambda kind: (kind.round, kind.part), SparseMessage),
}
_BY_NUMBER: Final = {layout.number: layout for layout in _LAYOUTS.values()}
HEADER_BYTES: Final = struct.calcsize(_COMMON) + _UNION_BYTES


def pack_header(header: FrameHeader, payload_bytes: int) -> bytes:
    """The header of a frame with so many bytes of payload; its sender is not in it."""
    layout = _LAYOUTS[type(header.kind)]
    at, group, offset, count = header.address
    return layout.whole.pack(
        _MAGIC,
        layout.number,
        header.value_type.value,
        header.encoding.value,
        *at,
        group,
        offset,
        count,
        header.selected,
        payload_bytes,
        *layout.fields(header.kind),
    )


def unpack_header(buffer: memoryview, sender: Sender, name: str) -> tuple[FrameHeader, int]:
    """A header of `sender`, and the bytes of payload that follow it.

    Raises:
        FrameError: it is none, or makes no sense; the message calls the sender `name`.
    """
    try:
        layout = _BY_NUMBER[buffer[_KIND_AT]]
        magic, _, value_type, encoding, plan, step, attempt, group, offset, count, selected, size, *fields = (
            layout.whole.unpack(buffer)
        )
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
    return header, size
