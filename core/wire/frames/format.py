"""The form of a frame on its way, whatever carries it: a header of fixed size, little-endian, and its payload behind.

A header has the numbers of kind and encodings, the address, a union that belongs to the kind, and two checksums
(CRC-32C): of the payload, and of all before it. So a header says what it is whether its values came whole or not. The
sender is not in it: a pipe has one at each end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, FrameError
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType, frame_of, payload_of
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import KINDS, MAKERS, UNION_BYTES, Encoding
from taihu.kernels.crc32c import checksum_at
from taihu.kernels.crc32c_folding import HAS_FOLDING

FORM: Final = 2
"""The number of this form; members of a run have one. Number 1 was a message of protobuf in streams."""
_MAGIC: Final = 0x74616869
# magic, kind, data type, encoding, number, plan, step, attempt, group, offset, count, selected, payload bytes
_COMMON: Final = "<IBBBBIQIIQQQQ"
_KIND_AT: Final = 4
_CHECKSUM: Final = struct.Struct("<I")
_COVERED_BYTES: Final = struct.calcsize(_COMMON) + UNION_BYTES + _CHECKSUM.size
# A multiple of 16, so that the values of a message lie aligned in it.
HEADER_BYTES: Final = _COVERED_BYTES + _CHECKSUM.size
_FORMS: Final = {
    number: struct.Struct(f"{_COMMON}{kind.form}{UNION_BYTES - struct.calcsize('<' + kind.form)}xI")
    for number, kind in KINDS.items()
}
_FIELDS: Final = {number: tuple(each.name for each in fields(kind)) for number, kind in KINDS.items()}
_ENCODINGS: Final = {each.value: each for each in Encoding}
# From this size on, what the kernel saves is more than a call of it costs.
_FOLDED_BYTES: Final = 128 << 10
_VALUE_TYPES: Final = {each.value: each for each in ValueType}


class Opening(NamedTuple):
    """A header that has come whole: the last eight bits of its frame's number, and what of the payload it tells."""

    header: FrameHeader
    number: int
    payload_bytes: int
    checksum: int


def checksum_of_all(pieces: Iterable[bytes | memoryview]) -> int:
    """The CRC-32C of contiguous pieces of memory, one behind the other; 0 of none."""
    checksum = 0
    for piece in pieces:
        if HAS_FOLDING and memoryview(piece).nbytes >= _FOLDED_BYTES:
            memory = np.frombuffer(piece, dtype=np.uint8)
            checksum = checksum_at(memory.ctypes.data, len(memory), checksum)
        else:
            checksum = crc32c(piece, checksum)
    return checksum


def pack_header(header: FrameHeader, payload_bytes: int, payload_checksum: int, number: int = 0) -> bytes:
    """The header of a frame with so many bytes of payload; of its `number` the last eight bits."""
    kind = header.kind
    at, group, offset, count = header.address
    covered = _FORMS[kind.number].pack(
        _MAGIC,
        kind.number,
        header.value_type.value,
        header.encoding.value,
        number & 0xFF,
        *at,
        group,
        offset,
        count,
        header.selected,
        payload_bytes,
        *map(getattr, repeat(kind), _FIELDS[kind.number]),
        payload_checksum,
    )
    return covered + _CHECKSUM.pack(crc32c(covered))


def open_header(buffer: memoryview, sender: Sender, name: str) -> Opening:
    """Read a header that `sender` has sent, of `HEADER_BYTES` bytes.

    Raises:
        DamagedFrameError: it is not as it was sent.
        FrameError: it is none, or makes no sense; the message calls the sender `name`.
    """
    seen = crc32c(buffer[:_COVERED_BYTES])
    (expected,) = _CHECKSUM.unpack_from(buffer, _COVERED_BYTES)
    if seen != expected:
        raise DamagedFrameError(f"header with checksum {seen:#010x}: expected {expected:#010x}")
    try:
        parts = _FORMS[buffer[_KIND_AT]].unpack_from(buffer)
        magic, kind, value_type, encoding, number, plan, step, attempt, group, offset, count, selected = parts[:12]
        size, *own, checksum = parts[12:]
        if magic != _MAGIC:
            raise ValueError(magic)
        header = FrameHeader(
            sender,
            Address(At(plan, step, attempt), group, offset, count),
            MAKERS[kind](*own),
            _ENCODINGS[encoding],
            _VALUE_TYPES[value_type],
            selected,
        )
    except (KeyError, ValueError, FrameError):
        raise FrameError(f"{name}: not the header of a frame that this version knows") from None
    header.check(size)
    return Opening(header, number, size, checksum)


def same_content(opening: Opening, payload: Sequence[memoryview]) -> None:
    """Raise DamagedFrameError unless a payload is as it was sent."""
    seen = checksum_of_all(payload)
    if seen != opening.checksum:
        raise DamagedFrameError(f"{opening.header.label}: checksum {seen:#010x}, expected {opening.checksum:#010x}")


def message_of(header: FrameHeader, pieces: Sequence[NDArray[Any]], number: int = 0) -> bytes:
    """A whole frame in one message; the only copy that is made of the values.

    `pieces` are contiguous arrays: of a dense frame `header.address.elements` values of the header's type together,
    of a sparse one the selected values and the bytes of its sections, else none.
    """
    payload = payload_of(pieces)
    return b"".join((pack_header(header, sum(map(len, payload)), checksum_of_all(payload), number), *payload))


def read_message(message: bytes | memoryview, sender: Sender, name: str) -> tuple[Frame, Opening]:
    """The frame of a message, whose arrays are views into it, and its header's opening.

    Raises:
        DamagedFrameError: the message is no frame, or not as it was sent.
        FrameError: it makes no sense.
    """
    view = memoryview(message)
    if len(view) < HEADER_BYTES:
        raise DamagedFrameError(f"{len(view)} bytes: expected a header of {HEADER_BYTES}, and values")
    opening = open_header(view[:HEADER_BYTES], sender, name)
    payload = view[HEADER_BYTES:]
    if len(payload) != opening.payload_bytes:
        raise DamagedFrameError(
            f"{opening.header.label}: {len(payload)} bytes behind the header, expected {opening.payload_bytes}"
        )
    same_content(opening, (payload,))
    return frame_of(opening.header, np.frombuffer(payload, dtype=np.uint8)), opening
