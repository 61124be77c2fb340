"""Arrays and layouts to messages and back: the only conversion there is.

A `Frame` on the wire is exactly the protobuf message of `protos/tensor.proto`. Its two fields are written in order,
so that encoding is one copy (the join of header and array memory) and decoding is none: the payload is a view into
the received bytes. A frame that another protobuf implementation wrote in another order is parsed by protobuf itself.

A frame has two checksums, of its header and of its payload: a header says what it is whether its values came whole or
not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from taihu.core.base.errors import DamagedFrameError, FrameError
from taihu.core.base.words import told
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.wire.frames.checksum import checksum_of, checksum_of_all
from taihu.core.wire.frames.headers import (
    Address,
    At,
    Frame,
    FrameHeader,
    ValueType,
    dense_values,
    frame_of,
    payload_of,
)
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import (
    ActivationPart,
    Encoding,
    Farewell,
    Gradients,
    Kind,
    Parameters,
    Question,
    Rates,
    RingSegment,
    SparseMessage,
    Summed,
)
from taihu.protos import tensor_pb2

__all__ = [
    "BYTES_PER_VALUE",
    "decode_frame",
    "encode_frame",
    "frame_from_message",
    "layout_from_message",
    "layout_to_message",
    "read_frame",
]

BYTES_PER_VALUE = 4
_HEADER_TAG = 0x0A
_PAYLOAD_TAG = 0x12
_PADDING_TAG = 0x7A
_CHECKSUM_TAG = b"\x85\x01"
_CHECKSUM_BYTES = 4
_ALIGNMENT = 16
_MAX_HEADER_BYTES = 1 << 16
_MAX_LENGTH_BYTES = 5


def encode_frame(header: FrameHeader, pieces: Sequence[NDArray[Any]], checksum: int | None = None) -> bytes:
    """Write one frame.

    The result is the only copy made of the values.

    Args:
        header: of a frame of any kind.
        pieces: contiguous arrays; of a dense frame `header.count` values of the header's type together, of a sparse
            one `header.selected` values followed by the bytes of its sections; else none.
        checksum: of the pieces, if it is known.
    """
    payload = payload_of(pieces)
    message = _written(header)
    message.payload_checksum = checksum_of_all(payload) if checksum is None else checksum
    prefix = _aligned_prefix(message.SerializeToString(), sum(map(len, payload)))
    return b"".join((prefix, *payload))


def read_frame(message: bytes) -> Frame:
    """Read one frame; the arrays are views into `message`, the values aligned.

    Values of a foreign sender that do not lie aligned are copied.

    Raises:
        DamagedFrameError: `message` is no Frame, or not as it was sent.
        FrameError: its payload does not hold the values that its header tells of.
    """
    try:
        header, payload = _split(message)
    except (DecodeError, IndexError, ValueError) as error:
        raise DamagedFrameError(f"not a Frame message of {len(message)} bytes: {error}") from None
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
    _check_written_anew(frame.header)
    checked = _checked(frame.header, frame.payload)
    return checked.header, dense_values(checked)


def layout_to_message(layout: Layout) -> tensor_pb2.Layout:
    """Convert a layout to its message."""
    return tensor_pb2.Layout(
        layers=[
            tensor_pb2.LayerSpec(
                name=layer.name,
                tensors=[tensor_pb2.TensorSpec(name=t.name, shape=t.shape) for t in layer.tensors],
                kind=layer.kind,
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
            LayerSpec(layer.name, tuple(TensorSpec(t.name, tuple(t.shape)) for t in layer.tensors), layer.kind)
            for layer in message.layers
        )
    )


def _split(message: bytes) -> tuple[tensor_pb2.Frame.Header, memoryview | bytes]:
    """A whole header, and the payload without a copy when both stand in order, else by protobuf."""
    if message and message[0] == _HEADER_TAG:
        size, start = _read_varint(message, 1)
        stop = start + size
        if size <= _MAX_HEADER_BYTES and stop < len(message) and message[stop] == _PAYLOAD_TAG:
            length, begin = _read_varint(message, stop + 1)
            if begin + length == len(message):
                written = message[start:stop]
                header = tensor_pb2.Frame.Header.FromString(written)
                if not _is_as_written_here(header, written):
                    _check_written_anew(header)
                return header, memoryview(message)[begin:]
    frame = tensor_pb2.Frame.FromString(message)
    _check_written_anew(frame.header)
    return frame.header, frame.payload


def _aligned_prefix(header: bytes, payload_bytes: int) -> bytes:
    """Everything before the payload, padded so that the payload lies at a multiple of 16 bytes.

    CPython places the contents of a bytes object at such a multiple too, so the receiver's view is aligned.
    """
    after = bytes((_PAYLOAD_TAG,)) + _varint(payload_bytes)
    unpadded = len(header) + len(_tail(0, 0))
    for padding in range(_ALIGNMENT):
        size = _varint(unpadded + padding)
        if (1 + len(size) + unpadded + padding + len(after)) % _ALIGNMENT == 0:
            break
    return b"".join((bytes((_HEADER_TAG,)), size, header, _tail(checksum_of(header), padding), after))


def _tail(checksum: int, padding: int) -> bytes:
    """The last fields of a header: its checksum, and the padding."""
    content = checksum.to_bytes(_CHECKSUM_BYTES, "little")
    return b"".join((_CHECKSUM_TAG, content, bytes((_PADDING_TAG, padding)), bytes(padding)))


def _is_as_written_here(header: tensor_pb2.Frame.Header, written: bytes) -> bool:
    """Whether `written`, which was read as `header`, is whole, and ends as this codec writes it."""
    padding = len(header.padding)
    if padding >= _ALIGNMENT:
        return False
    tail = _tail(header.checksum, padding)
    return written.endswith(tail) and checksum_of(memoryview(written)[: -len(tail)]) == header.checksum


def _check_written_anew(header: tensor_pb2.Frame.Header) -> None:
    """Raise DamagedFrameError unless a header that somebody else has written is whole."""
    plain = tensor_pb2.Frame.Header()
    plain.CopyFrom(header)
    plain.ClearField("padding")
    plain.ClearField("checksum")
    seen = checksum_of(plain.SerializeToString())
    if not header.HasField("checksum") or seen != header.checksum or any(header.padding):
        raise DamagedFrameError(f"header with checksum {seen:#010x}: expected {header.checksum:#010x}, zeros behind")


def _checked(message: tensor_pb2.Frame.Header, payload: memoryview | bytes) -> Frame:
    header = _read(message)
    seen = checksum_of(payload)
    if seen != message.payload_checksum:
        raise DamagedFrameError(f"{header.label}: checksum {seen:#010x}, expected {message.payload_checksum:#010x}")
    header.check(len(payload))
    frame = frame_of(header, np.frombuffer(payload, dtype=np.uint8))
    return frame if frame.values.flags.aligned else replace(frame, values=frame.values.copy())


def _written(header: FrameHeader) -> tensor_pb2.Frame.Header:
    message = tensor_pb2.Frame.Header(selected=header.selected)
    message.data_type = tensor_pb2.DataType.ValueType(header.value_type.value)
    message.encoding = tensor_pb2.Encoding.ValueType(header.encoding.value)
    # Setting fields takes half the time of making messages and merging them.
    sender, address = message.sender, message.address
    sender.job, sender.incarnation, rank = header.sender
    if rank is not None:
        sender.rank = rank
    (address.plan, address.step, address.attempt), address.group, address.offset, address.count = header.address
    _write_kind(message, header.kind)
    return message


def _write_kind(message: tensor_pb2.Frame.Header, kind: Kind) -> None:
    match kind:
        case Gradients(loss_scale, skipped):
            message.gradients.skipped = skipped
            if loss_scale != 1.0:
                message.gradients.loss_scale = loss_scale
        case Rates():
            message.rates.SetInParent()
        case Question():
            message.question.SetInParent()
        case Summed(completed_s, skipped):
            message.summed.completed_s = completed_s
            message.summed.skipped = skipped
        case Parameters():
            message.parameters.SetInParent()
        case RingSegment(hop, gather):
            message.ring_segment.hop = hop
            message.ring_segment.gather = gather
        case ActivationPart(frames):
            message.part.frames = frames
        case SparseMessage(number, part):
            message.sparse_message.round = number
            message.sparse_message.part = part
        case Farewell(failure):
            message.farewell.failure = failure


def _read(message: tensor_pb2.Frame.Header) -> FrameHeader:
    sender, address = message.sender, message.address
    try:
        encoding = Encoding(message.encoding)
    except ValueError:
        raise FrameError(f"frame encoding {message.encoding}: not known to this version") from None
    return FrameHeader(
        Sender(sender.job, sender.incarnation, sender.rank if sender.HasField("rank") else None),
        Address(At(address.plan, address.step, address.attempt), address.group, address.offset, address.count),
        _read_kind(message),
        encoding,
        _value_type(message.data_type),
        message.selected,
    )


_KINDS: Final[Mapping[str, Callable[[tensor_pb2.Frame.Header], Kind]]] = {
    "gradients": lambda message: Gradients(message.gradients.loss_scale or 1.0, message.gradients.skipped),
    "rates": lambda _: Rates(),
    "question": lambda _: Question(),
    "summed": lambda message: Summed(message.summed.completed_s, message.summed.skipped),
    "parameters": lambda _: Parameters(),
    "ring_segment": lambda message: RingSegment(message.ring_segment.hop, message.ring_segment.gather),
    "part": lambda message: ActivationPart(message.part.frames),
    "sparse_message": lambda message: SparseMessage(message.sparse_message.round, message.sparse_message.part),
    "farewell": lambda message: Farewell(told(message.farewell.failure)),
}


def _read_kind(message: tensor_pb2.Frame.Header) -> Kind:
    name = message.WhichOneof("kind")
    if name is None:
        raise FrameError("a frame of no kind that is known to this version")
    return _KINDS[name](message)


def _value_type(number: int) -> ValueType:
    try:
        return ValueType(number)
    except ValueError:
        expected = ", ".join(f"{value_type.value} ({value_type.label})" for value_type in ValueType)
        raise FrameError(f"frame data type {number}: expected {expected}") from None


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
