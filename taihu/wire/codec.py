"""Arrays and layouts to messages and back: the only conversion there is.

A `Frame` on the wire is exactly the protobuf message of `protos/tensor.proto`. Its two fields are written in order,
so that encoding is one copy (the join of header and array memory) and decoding is none: the payload is a view into
the received bytes. A frame that another protobuf implementation wrote in another order is parsed by protobuf itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from protos import tensor_pb2
from taihu.errors import FrameError
from taihu.layout import LayerSpec, Layout, TensorSpec

__all__ = [
    "BYTES_PER_VALUE",
    "MAX_PAYLOAD_BYTES",
    "FrameHeader",
    "decode_frame",
    "encode_frame",
    "frame_from_message",
    "layout_from_message",
    "layout_to_message",
]

MAX_PAYLOAD_BYTES = 4 << 20
BYTES_PER_VALUE = 4
_WIRE_TYPE = np.dtype("<f4")
_HEADER_TAG = 0x0A
_PAYLOAD_TAG = 0x12
_PADDING_TAG = 0x7A
_ALIGNMENT = 16
_MAX_HEADER_BYTES = 1 << 16
_MAX_LENGTH_BYTES = 5


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Where a frame belongs. `sender` is the rank of a worker, or None for a server."""

    job: str
    incarnation: int
    plan: int
    step: int
    group: int
    offset: int
    count: int
    sender: int | None = None


def encode_frame(header: FrameHeader, pieces: Sequence[NDArray[np.float32]]) -> bytes:
    """Write one frame; `pieces` are contiguous fp32 arrays with `header.count` values together.

    The result is the only copy made of the values.
    """
    message = tensor_pb2.Frame.Header(
        job=header.job,
        incarnation=header.incarnation,
        plan=header.plan,
        step=header.step,
        group=header.group,
        offset=header.offset,
        count=header.count,
        data_type=tensor_pb2.DATA_TYPE_FLOAT32,
    )
    if header.sender is not None:
        message.sender = header.sender
    prefix = _aligned_prefix(message.SerializeToString(), header.count * BYTES_PER_VALUE)
    return b"".join((prefix, *(piece.view(np.uint8).data for piece in pieces)))


def decode_frame(message: bytes) -> tuple[FrameHeader, NDArray[np.float32]]:
    """Read one frame; the returned values are an aligned, read-only view into `message`.

    The payload of a foreign sender that does not lie aligned is copied.

    Raises:
        FrameError: `message` is no Frame, its type is not fp32, or its payload does not hold `count` values.
    """
    try:
        header, payload = _split(message)
    except (DecodeError, IndexError, ValueError) as error:
        raise FrameError(f"not a Frame message of {len(message)} bytes: {error}") from None
    return _checked(header, payload)


def frame_from_message(frame: tensor_pb2.Frame) -> tuple[FrameHeader, NDArray[np.float32]]:
    """Like `decode_frame`, for a frame that is part of another message."""
    return _checked(frame.header, frame.payload)


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


def _checked(header: tensor_pb2.Frame.Header, payload: memoryview | bytes) -> tuple[FrameHeader, NDArray[np.float32]]:
    if header.data_type != tensor_pb2.DATA_TYPE_FLOAT32:
        raise FrameError(f"frame data type {header.data_type}: expected {tensor_pb2.DATA_TYPE_FLOAT32} (float32)")
    if len(payload) != header.count * BYTES_PER_VALUE or len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(
            f"frame payload of {len(payload)} bytes: expected {header.count} float32 values, "
            f"at most {MAX_PAYLOAD_BYTES} bytes"
        )
    values = np.frombuffer(payload, dtype=_WIRE_TYPE)
    return _header(header), values if values.flags.aligned else values.copy()


def _header(message: tensor_pb2.Frame.Header) -> FrameHeader:
    return FrameHeader(
        job=message.job,
        incarnation=message.incarnation,
        plan=message.plan,
        step=message.step,
        group=message.group,
        offset=message.offset,
        count=message.count,
        sender=message.sender if message.HasField("sender") else None,
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
