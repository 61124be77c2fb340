"""Arrays and layouts to messages and back: the only conversion there is.

A `Frame` on the wire is exactly the protobuf message of `protos/tensor.proto`. Its two fields are written in order,
so that encoding is one copy (the join of header and array memory) and decoding is none: the payload is a view into
the received bytes. A frame that another protobuf implementation wrote in another order is parsed by protobuf itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from kernels.half import HalfKind
from protos import tensor_pb2
from taihu.errors import FrameError
from taihu.layout import LayerSpec, Layout, TensorSpec
from taihu.wire.limits import MAX_PAYLOAD_BYTES

__all__ = [
    "BYTES_PER_VALUE",
    "Frame",
    "FrameHeader",
    "ValueType",
    "check_payload",
    "decode_frame",
    "dense_values",
    "encode_frame",
    "frame_from_message",
    "frame_of",
    "layout_from_message",
    "layout_to_message",
    "read_frame",
]

BYTES_PER_VALUE = 4
_WIRE_TYPE = np.dtype("<f4")
_HEADER_TAG = 0x0A
_PAYLOAD_TAG = 0x12
_PADDING_TAG = 0x7A
_ALIGNMENT = 16
_MAX_HEADER_BYTES = 1 << 16
_MAX_LENGTH_BYTES = 5


class ValueType(Enum):
    """Type of the values on the wire; the 16-bit ones travel as codes of `kernels.half` (uint16).

    Gradients and parameters of a job are fp32, or 16-bit in mixed precision, sparse values too; fp64 only workers
    reduce.
    """

    FP32 = tensor_pb2.DATA_TYPE_FLOAT32
    FP16 = tensor_pb2.DATA_TYPE_FLOAT16
    BF16 = tensor_pb2.DATA_TYPE_BFLOAT16
    FP64 = tensor_pb2.DATA_TYPE_FLOAT64

    @classmethod
    def named(cls, name: str) -> ValueType:
        """The type by its name in a job file, for example bf16."""
        return cls[name.upper()]

    @property
    def label(self) -> str:
        """Its common name."""
        return {self.FP32: "float32", self.FP16: "float16", self.BF16: "bfloat16", self.FP64: "float64"}[self]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The little-endian NumPy type that holds such values."""
        match self:
            case ValueType.FP32:
                return _WIRE_TYPE
            case ValueType.FP64:
                return np.dtype("<f8")
            case _:
                return np.dtype("<u2")

    @property
    def half_kind(self) -> HalfKind | None:
        """The name of a 16-bit type in `kernels.half`; None for the others."""
        match self:
            case ValueType.FP16:
                return "fp16"
            case ValueType.BF16:
                return "bf16"
            case _:
                return None


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The place of a frame, and of its values in it.

    `sender` is the rank of a worker, or None for a server; `selected` is the number of values of a sparse frame, or
    None for a dense one; the values of a `shared` frame lie in memory that both sides map; a `bare` frame has none,
    it asks a server for them, or says that a sum is complete and that they may be asked for; `completed_s` is set in
    answers, in seconds of the server's monotonic clock; `hop`, `failure` and `last` are set between workers: how
    often a range has been sent on, why the sender gives up, and whether it leaves in good order. In mixed precision
    `loss_scale` is what a worker's gradients were multiplied by, and `skipped` says of a worker's frame that the step
    has gradients which do not fit, of a server's that the step was skipped.

    `attempt` is how often the run had gone back when the frame was sent. It never falls: a rank may be a step ahead
    of another, so that what it sent of later steps is undone as well when a step is replayed.
    """

    job: str
    incarnation: int
    plan: int
    step: int
    group: int
    offset: int
    count: int
    sender: int | None = None
    selected: int | None = None
    value_type: ValueType = ValueType.FP32
    shared: bool = False
    bare: bool = False
    completed_s: float = 0.0
    hop: int = 0
    failure: str = ""
    last: bool = False
    loss_scale: float = 1.0
    skipped: bool = False
    attempt: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether the payload holds a value for every element."""
        return self.selected is None and not self.shared and not self.bare

    @property
    def shared_bytes(self) -> int:
        """Bytes of the values that the frame tells of in shared memory."""
        return self.count * self.value_type.dtype.itemsize if self.shared else 0


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was read; neither array may be written to.

    `values` has shape (count,), or (selected,) when sparse, in the header's type; `sections`, uint8, says where the
    values of a sparse frame belong (`kernels.pack`) and is empty in a dense one.
    """

    header: FrameHeader
    values: NDArray[Any]
    sections: NDArray[np.uint8]

    @property
    def size_bytes(self) -> int:
        """Bytes of values and sections together."""
        return self.values.nbytes + self.sections.nbytes

    @property
    def moved_bytes(self) -> int:
        """Bytes that the frame moves, in its payload or in shared memory."""
        return self.size_bytes + self.header.shared_bytes


def encode_frame(header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> bytes:
    """Write one frame.

    The result is the only copy made of the values.

    Args:
        header: of a frame of any kind.
        pieces: contiguous arrays; of a dense frame `header.count` values of the header's type together, of a sparse
            one `header.selected` values followed by the bytes of its sections; none of a shared or bare one.
    """
    message = tensor_pb2.Frame.Header(
        job=header.job,
        incarnation=header.incarnation,
        plan=header.plan,
        step=header.step,
        group=header.group,
        offset=header.offset,
        count=header.count,
        data_type=header.value_type.value,
        completed_s=header.completed_s,
        hop=header.hop,
        failure=header.failure,
        last=header.last,
        loss_scale=header.loss_scale if header.loss_scale != 1.0 else 0.0,
        skipped=header.skipped,
        attempt=header.attempt,
    )
    if header.sender is not None:
        message.sender = header.sender
    if header.selected is not None:
        message.encoding = tensor_pb2.ENCODING_SPARSE
        message.selected = header.selected
    elif header.shared:
        message.encoding = tensor_pb2.ENCODING_SHARED
    elif header.bare:
        message.encoding = tensor_pb2.ENCODING_BARE
    prefix = _aligned_prefix(message.SerializeToString(), sum(piece.nbytes for piece in pieces))
    return b"".join((prefix, *(piece.view(np.uint8).data for piece in pieces)))


def read_frame(message: bytes) -> Frame:
    """Read one frame; the arrays are views into `message`, the values aligned.

    Values of a foreign sender that do not lie aligned are copied.

    Raises:
        FrameError: `message` is no Frame, or its payload does not hold the values that its header tells of.
    """
    try:
        header, payload = _split(message)
    except (DecodeError, IndexError, ValueError) as error:
        raise FrameError(f"not a Frame message of {len(message)} bytes: {error}") from None
    return _checked(header, payload)


def decode_frame(message: bytes) -> tuple[FrameHeader, NDArray[np.float32]]:
    """Like `read_frame`, for a frame that must be dense.

    Raises:
        FrameError: it is none, or not dense.
    """
    frame = read_frame(message)
    return frame.header, dense_values(frame)


def frame_from_message(frame: tensor_pb2.Frame) -> tuple[FrameHeader, NDArray[np.float32]]:
    """Like `decode_frame`, for a frame that is part of another message."""
    checked = _checked(frame.header, frame.payload)
    return checked.header, dense_values(checked)


def check_payload(header: FrameHeader, size_bytes: int) -> None:
    """Raise FrameError unless a payload of this size holds the values that `header` tells of."""
    if size_bytes > MAX_PAYLOAD_BYTES:
        raise FrameError(f"frame payload of {size_bytes} bytes: expected at most {MAX_PAYLOAD_BYTES} bytes")
    held = _held(header)
    needed = held * header.value_type.dtype.itemsize
    if needed > size_bytes or (needed < size_bytes and header.selected is None) or held > header.count:
        raise FrameError(
            f"frame payload of {size_bytes} bytes: expected {held} {header.value_type.label} values of "
            f"{header.count} elements"
        )


def frame_of(header: FrameHeader, payload: NDArray[np.uint8]) -> Frame:
    """The frame of a payload that `check_payload` found good; the arrays are views of it."""
    size = _held(header) * header.value_type.dtype.itemsize
    return Frame(header, payload[:size].view(header.value_type.dtype), payload[size:])


def dense_values(frame: Frame, value_type: ValueType = ValueType.FP32) -> NDArray[Any]:
    """The values of a frame that must hold one of this type for every element; raises FrameError when it does not."""
    header = frame.header
    if not header.is_dense or header.value_type is not value_type:
        kinds = {"sparse": header.selected is not None, "shared": header.shared, "bare": header.bare, "dense": True}
        kind = next(name for name, applies in kinds.items() if applies)
        raise FrameError(
            f"frame at offset {header.offset} is {kind} with {header.value_type.label} values: expected a dense one "
            f"with {value_type.label} values"
        )
    return frame.values


def layout_to_message(layout: Layout) -> tensor_pb2.Layout:
    """Convert a layout to its message."""
    return tensor_pb2.Layout(
        layers=[
            tensor_pb2.LayerSpec(
                name=layer.name,
                tensors=[tensor_pb2.TensorSpec(name=t.name, shape=t.shape) for t in layer.tensors],
            )
            for layer in layout.layers
        ]
    )


def layout_from_message(message: tensor_pb2.Layout) -> Layout:
    """Convert a message to a layout.

    Raises:
        FrameError: a dimension is negative.
    """
    for layer in message.layers:
        for tensor in layer.tensors:
            if any(size < 0 for size in tensor.shape):
                raise FrameError(f"layout: {layer.name}/{tensor.name} has a negative dimension {list(tensor.shape)}")
    return Layout(
        tuple(
            LayerSpec(layer.name, tuple(TensorSpec(t.name, tuple(t.shape)) for t in layer.tensors))
            for layer in message.layers
        )
    )


def _held(header: FrameHeader) -> int:
    """Number of values in the payload."""
    if header.shared or header.bare:
        return 0
    return header.count if header.selected is None else header.selected


def _split(message: bytes) -> tuple[tensor_pb2.Frame.Header, memoryview | bytes]:
    """Header and payload without a copy when both stand in order, else by protobuf."""
    if message and message[0] == _HEADER_TAG:
        size, start = _read_varint(message, 1)
        stop = start + size
        if size <= _MAX_HEADER_BYTES and stop < len(message) and message[stop] == _PAYLOAD_TAG:
            length, begin = _read_varint(message, stop + 1)
            if begin + length == len(message):
                return tensor_pb2.Frame.Header.FromString(message[start:stop]), memoryview(message)[begin:]
    frame = tensor_pb2.Frame.FromString(message)
    return frame.header, frame.payload


def _aligned_prefix(header: bytes, payload_bytes: int) -> bytes:
    """Everything before the payload, padded so that the payload lies at a multiple of 16 bytes.

    CPython places the contents of a bytes object at such a multiple too, so the receiver's view is aligned.
    """
    after = bytes((_PAYLOAD_TAG,)) + _varint(payload_bytes)
    for padding in range(_ALIGNMENT):
        size = _varint(len(header) + 2 + padding)
        if (1 + len(size) + len(header) + 2 + padding + len(after)) % _ALIGNMENT == 0:
            break
    return b"".join((bytes((_HEADER_TAG,)), size, header, bytes((_PADDING_TAG, padding)), bytes(padding), after))


def _checked(message: tensor_pb2.Frame.Header, payload: memoryview | bytes) -> Frame:
    header = _header(message)
    check_payload(header, len(payload))
    frame = frame_of(header, np.frombuffer(payload, dtype=np.uint8))
    return frame if frame.values.flags.aligned else replace(frame, values=frame.values.copy())


def _header(message: tensor_pb2.Frame.Header) -> FrameHeader:
    sparse = message.encoding == tensor_pb2.ENCODING_SPARSE
    if message.encoding not in tensor_pb2.Encoding.values() or (message.selected and not sparse):
        raise FrameError(f"frame encoding {message.encoding}, {message.selected} selected: not known to this version")
    if not math.isfinite(message.completed_s):
        raise FrameError(f"frame completed at {message.completed_s} s: expected a finite time")
    if not 0.0 <= message.loss_scale < math.inf:
        raise FrameError(f"frame with loss scale {message.loss_scale}: expected a finite, positive one")
    known = {value_type.value: value_type for value_type in ValueType}
    if message.data_type not in known:
        expected = ", ".join(f"{number} ({value_type.label})" for number, value_type in known.items())
        raise FrameError(f"frame data type {message.data_type}: expected {expected}")
    return FrameHeader(
        job=message.job,
        incarnation=message.incarnation,
        plan=message.plan,
        step=message.step,
        group=message.group,
        offset=message.offset,
        count=message.count,
        sender=message.sender if message.HasField("sender") else None,
        selected=message.selected if sparse else None,
        value_type=known[message.data_type],
        shared=message.encoding == tensor_pb2.ENCODING_SHARED,
        bare=message.encoding == tensor_pb2.ENCODING_BARE,
        completed_s=message.completed_s,
        hop=message.hop,
        failure=message.failure,
        last=message.last,
        loss_scale=message.loss_scale or 1.0,
        skipped=message.skipped,
        attempt=message.attempt,
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """The value at `position` and the position after it."""
    value = shift = 0
    while shift < _MAX_LENGTH_BYTES * 7:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError(f"a length of more than {_MAX_LENGTH_BYTES} bytes")
