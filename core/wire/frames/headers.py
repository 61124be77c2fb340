"""Frames and their headers: sender, kind, address of the values, and their encoding. Pure.

`taihu.core.wire.frames.format` has their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError
from taihu.core.base.words import told
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, K, Kind
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.kernels.base.half import HalfKind, from_half
from taihu.kernels.packing import unpack
from taihu.kernels.packing.few_bits import FEW_BITS, STEP_BYTES, codes_bytes, read_codes

BYTES_PER_VALUE = 4
"""Bytes of a value in the arenas: fp32."""
_SELECTING = frozenset((Encoding.SPARSE, Encoding.TEXT))
# Positions are counted in 64 bits with a sign.
_MOST_ELEMENTS = (1 << 63) - 1


class ValueType(Enum):
    """Type of the values on the wire; the 16-bit ones travel as codes of `taihu.kernels.base.half` (uint16).

    Gradients and parameters of a job are fp32, or 16-bit in mixed precision, sparse values too; fp64 only workers
    reduce. Sparse values alone have 8, 4 or 2 bits, packed as by `kernels.packing.few_bits` (uint8). The values of
    the members are their numbers on the wire.

    Attributes:
        label: the common name.
        dtype: the little-endian NumPy type that holds such values.
        half_kind: the name of a 16-bit type in `taihu.kernels.base.half`; None for the others.
        few_bits: the bits of a value that has 8 or less; 0 for the others.
    """

    label: str
    dtype: np.dtype[Any]
    half_kind: HalfKind | None
    few_bits: int

    FP32 = 1, "float32", "<f4"
    FP16 = 2, "float16", "<u2", "fp16"
    BF16 = 3, "bfloat16", "<u2", "bf16"
    FP64 = 4, "float64", "<f8"
    INT8 = 5, "int8", "|u1"
    INT4 = 6, "int4", "|u1"
    INT2 = 7, "int2", "|u1"

    def __new__(cls, number: int, label: str, dtype: str, half_kind: HalfKind | None = None) -> Self:
        """A member whose value is its number."""
        member = object.__new__(cls)
        member._value_ = number
        member.label = label
        member.dtype = np.dtype(dtype)
        member.half_kind = half_kind
        member.few_bits = FEW_BITS.get(label, 0)
        return member

    @classmethod
    def named(cls, name: str) -> ValueType:
        """The type by its name in a job file, for example bf16."""
        return cls[name.upper()]

    @property
    def bytes_each(self) -> float:
        """Bytes of one value, a part of one where it has fewer bits."""
        return self.bytes_of(8) / 8

    def bytes_of(self, count: int) -> int:
        """Bytes of so many values."""
        return codes_bytes(count, self.few_bits) if self.few_bits else count * self.dtype.itemsize


class Range(Protocol):
    """A range of a group, as a plan cuts it."""

    @property
    def group(self) -> int:
        """Its group."""

    @property
    def offset(self) -> int:
        """Its first element."""

    @property
    def count(self) -> int:
        """Its number of elements."""


class At(NamedTuple):
    """One attempt at one step by one plan: the key of all that travels for it.

    Steps count from 1; 0 is the initial state. Attempts count how often the run has gone back, and never fall in it:
    a rank may be a step ahead of another, so that what it sent of later steps is undone as well when a step is
    replayed. What no plan has cut has plan and step 0.
    """

    plan: int
    step: int
    attempt: int = 0

    def range(self, part: Range) -> Address:
        """The address of a range."""
        return Address(self, part.group, part.offset, part.count)


class Address(NamedTuple):
    """The address of a frame's values: `elements` of a group from `offset` on.

    Offsets count in the arena of the server that sends or receives the frame; between workers, in the array that they
    work on together. Calls and transfers between workers have their number in the place of a group.
    """

    at: At
    group: int
    offset: int
    elements: int


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a frame; `selected` is the number of values of a sparse one, or of bytes of a text."""

    sender: Sender
    address: Address
    kind: Kind
    encoding: Encoding = Encoding.DENSE
    value_type: ValueType = ValueType.FP32
    selected: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether the payload holds a value for every element."""
        return self.encoding is Encoding.DENSE

    @property
    def held(self) -> int:
        """Number of values in the payload."""
        if self.encoding is Encoding.DENSE:
            return self.address.elements
        return self.selected if self.encoding is Encoding.SPARSE else 0

    @property
    def shared_bytes(self) -> int:
        """Bytes of the values that the frame tells of in shared memory."""
        return self.address.elements * self.value_type.dtype.itemsize if self.encoding is Encoding.SHARED else 0

    @property
    def label(self) -> str:
        """The frame in messages: what it is, and of which values."""
        (_, step, attempt), group, offset, count = self.address
        again = f", attempt {attempt}" if attempt else ""
        return f"{self.kind.label}, group {group}, {count} values at {offset}, step {step}{again}"

    def expect(self, kind: type[K]) -> K:
        """The frame's kind, which must be this one; raises FrameError when it is not."""
        if not isinstance(self.kind, kind):
            raise self.unexpected(kind)
        return self.kind

    def unexpected(self, *expected: type[Kind]) -> FrameError:
        """The error of a receiver that expected others."""
        labels = " or ".join(kind.label for kind in expected) or "nothing"
        return FrameError(f"{self.sender.label} sent {self.kind.label}: expected {labels}")

    def check(self, payload_bytes: int) -> None:
        """Raise FrameError unless the fields belong together, and a payload of this size holds the values."""
        offset, count = self.address.offset, self.address.elements
        if self.encoding not in self.kind.encodings:
            raise FrameError(f"{self.sender.label} sent {self.kind.label} with encoding {self.encoding.name.lower()}")
        if self.selected and self.encoding not in _SELECTING:
            raise FrameError(f"frame encoding {self.encoding.name.lower()}, {self.selected} selected: expected none")
        if payload_bytes > MAX_PAYLOAD_BYTES:
            raise FrameError(f"frame payload of {payload_bytes} bytes: expected at most {MAX_PAYLOAD_BYTES} bytes")
        held, is_sparse = self.held, self.encoding is Encoding.SPARSE
        if self.value_type.few_bits and not is_sparse:
            raise FrameError(f"frame encoding {self.encoding.name.lower()}, {self.value_type.label}: expected sparse")
        rest = payload_bytes - self.value_type.bytes_of(held)
        behind = self.selected if self.encoding is Encoding.TEXT else 0
        if rest < behind or (rest > behind and not is_sparse) or held > count:
            raise FrameError(
                f"frame payload of {payload_bytes} bytes: expected {held} {self.value_type.label} values of "
                f"{count} elements"
            )
        if offset + count > _MOST_ELEMENTS:
            raise FrameError(
                f"frame of {count} values at offset {offset}: expected at most {_MOST_ELEMENTS} elements"
            )


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was read; neither array may be written to.

    `values` has shape (count,), or (selected,) when sparse, in the header's type; where this has a few bits they are
    packed codes. `sections`, uint8, says where the values of a sparse frame belong (`kernels.packing.sections`),
    behind the steps of a few bits, or is a text; it is empty in a dense one.
    """

    header: FrameHeader
    values: NDArray[Any]
    sections: NDArray[np.uint8]

    @property
    def text(self) -> str:
        """The words of a text, fit to be shown; "" where there are none."""
        return told(self.sections.tobytes().decode(errors="replace")) if self.header.encoding is Encoding.TEXT else ""

    @property
    def size_bytes(self) -> int:
        """Bytes of values and sections together."""
        return self.values.nbytes + self.sections.nbytes

    @property
    def moved_bytes(self) -> int:
        """Bytes that the frame moves, in its payload or in shared memory."""
        return self.size_bytes + self.header.shared_bytes


def frame_of(header: FrameHeader, payload: NDArray[np.uint8]) -> Frame:
    """The frame of a payload that `header.check` found good; the arrays are views of it."""
    dtype = header.value_type.dtype
    size = header.value_type.bytes_of(header.held)
    return Frame(header, payload[:size].view(dtype), payload[size:])


def dense_values(frame: Frame, value_type: ValueType = ValueType.FP32) -> NDArray[Any]:
    """The values of a frame that must hold one of this type for every element; raises FrameError when it does not."""
    header = frame.header
    if not header.is_dense or header.value_type is not value_type:
        raise FrameError(
            f"frame at offset {header.address.offset} is {header.encoding.name.lower()} with "
            f"{header.value_type.label} values: expected a dense one with {value_type.label} values"
        )
    return frame.values


def selected_values(frame: Frame, indices: NDArray[np.int32], bounds: NDArray[np.int64]) -> NDArray[np.float32]:
    """Find the places of a sparse frame's values, and decode these.

    Args:
        frame: of values of at most 32 bits.
        indices: shape (frame.header.selected,), out: ascending places.
        bounds: shape (pieces, 2): what the frame covers.

    Returns:
        Shape (selected,), fp32; a view where they travel so.

    Raises:
        ValueError: sections or values are not what they should be.
        FrameError: the values have more bits.
    """
    value_type = frame.header.value_type
    bits, values = value_type.few_bits, frame.values
    steps_bytes = len(bounds) * STEP_BYTES if bits else 0
    unpack(frame.sections[steps_bytes:], bounds, frame.header.selected, indices)
    if value_type is ValueType.FP32:
        return values
    decoded = np.empty(len(indices), dtype=np.float32)
    if bits:
        told = np.frombuffer(frame.sections[:steps_bytes].tobytes(), dtype="<u2")
        steps = np.empty(len(told), dtype=np.float32)
        from_half(told, "bf16", steps)
        read_codes(values, bits, indices, bounds, steps, decoded)
    elif value_type.half_kind is not None:
        from_half(values, value_type.half_kind, decoded)
    else:
        name = frame.header.sender.label
        raise FrameError(f"frame of {name} has {value_type.label} values: expected at most 32 bits")
    return decoded


def payload_of(pieces: Sequence[NDArray[Any]]) -> list[memoryview]:
    """The memory of contiguous arrays."""
    return [piece.view(np.uint8).data for piece in pieces]
