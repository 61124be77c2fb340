"""Targets that come over the network: frames of every transport, and what they hold."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from benchmarks.inputs.fuzzing.target import Target
from taihu.allreduce.operations import Operations
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.ring.schedule import Ring, buffer_layout, cut_chunks
from taihu.allreduce.same_host.path import DESCRIPTOR_BYTES, decode_descriptor, encode_descriptor
from taihu.core.base.errors import FrameError, SharedMemoryError, TaihuError
from taihu.core.planner.groups import Group
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.format import HEADER_BYTES, message_of, open_header, pack_header, read_message
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender, WorkerIdentity, identity_from_metadata
from taihu.core.wire.frames.kinds import (
    ActivationPart,
    Encoding,
    Farewell,
    Gradients,
    Kind,
    RingSegment,
    SparseMessage,
)
from taihu.core.wire.frames.layouts import layout_from_message
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.shared_memory import SharedDescriptor, buffer_from_message, buffer_to_message, open_shared
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.kernels.packing import pack, packed_bound, unpack
from taihu.kernels.packing.few_bits import read_codes
from taihu.protos import parameter_server_pb2, tensor_pb2

__all__ = ["TARGETS", "header", "read", "sealed", "sealed_frame", "unsealed"]

_COVERED_BYTES: Final = HEADER_BYTES - 4
_SIZE, _SIZE_AT = struct.Struct("<Q"), 52
_CHECKSUM: Final = struct.Struct("<I")
_BOUNDS: Final = np.array([[0, 40], [50, 51], [60, 1000]], dtype=np.int64)
_SENDER: Final = Sender(7, 2)
_ONES: Final = np.ones(8, dtype=np.float32)


def header(kind: Kind, encoding: Encoding = Encoding.DENSE, elements: int = 8, **more: Any) -> FrameHeader:
    """A header of worker 2."""
    return FrameHeader(_SENDER, Address(At(1, 1), 0, 0, elements), kind, encoding, **more)


def sealed(data: bytes) -> bytes:
    """The message of a frame with right checksums and size: a header without its last, and a payload.

    A changed message would be damaged, and nothing behind the checksums be reached.
    """
    covered = bytearray(data[:_COVERED_BYTES].ljust(_COVERED_BYTES, b"\0"))
    payload = data[_COVERED_BYTES:]
    _SIZE.pack_into(covered, _SIZE_AT, len(payload))
    _CHECKSUM.pack_into(covered, _COVERED_BYTES - _CHECKSUM.size, crc32c(payload))
    return bytes(covered) + _CHECKSUM.pack(crc32c(covered)) + payload


def unsealed(header: FrameHeader, *pieces: NDArray[Any]) -> bytes:
    """The bytes that `sealed` makes the frame of."""
    message = message_of(header, pieces)
    return message[:_COVERED_BYTES] + message[HEADER_BYTES:]


def read(message: bytes, sender: Sender = _SENDER) -> Frame:
    """The frame of a message of `sender`, worker 2 unless told."""
    return read_message(message, sender, sender.label)[0]


def sealed_frame(data: bytes) -> Frame:
    """The frame of `sealed`."""
    return read(sealed(data))


def _sections() -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.int32]]:
    indices = np.array([0, 3, 39, 50, 60, 700], dtype=np.int32)
    values, sections = np.empty(6, dtype=np.float32), np.empty(packed_bound(6, 3), dtype=np.uint8)
    _, size = pack(indices, np.ones(6, dtype=np.float32), _BOUNDS, values, sections)
    return values, sections[:size], indices


def _frames() -> list[bytes]:
    values, sections, _ = _sections()
    return [
        unsealed(header(Gradients()), _ONES),
        unsealed(header(Gradients(), Encoding.SPARSE, 1000, selected=6), values, sections),
        unsealed(header(Gradients(2.0), value_type=ValueType.FP16), np.ones(8, dtype=np.uint16)),
        unsealed(header(RingSegment(0)), _ONES),
        unsealed(header(ActivationPart(1)), _ONES),
        unsealed(header(SparseMessage(0), Encoding.SPARSE, 1000, selected=6), values, sections),
        unsealed(header(Farewell(), Encoding.TEXT, 0, selected=12), np.frombuffer(b"out of paper", dtype=np.uint8)),
    ]


def _written(_: Path) -> Callable[[bytes], object]:
    return read


def _resealed(_: Path) -> Callable[[bytes], object]:
    return sealed_frame


def _layout(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        try:
            message = tensor_pb2.Layout.FromString(data)
        except DecodeError:
            raise FrameError("no layout") from None
        layout = layout_from_message(message)
        return layout.elements, layout.digest

    return call


def _metadata(_: Path) -> Callable[[bytes], object]:
    names = ("taihu-job", "taihu-rank", "taihu-incarnation")

    def call(data: bytes) -> object:
        texts = data.decode("latin-1").split("\0")
        return identity_from_metadata(list(zip(names, texts, strict=False)))

    return call


def _sealed_header(data: bytes) -> bytes:
    """A header with a right checksum, whatever it says of its payload."""
    covered = data[:_COVERED_BYTES].ljust(_COVERED_BYTES, b"\0")
    return covered + _CHECKSUM.pack(crc32c(covered))


def _header(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        return open_header(memoryview(_sealed_header(data)), _SENDER, "worker 2")

    return call


def _connection(_: Path) -> Callable[[bytes], object]:
    """All that comes on a connection until it ends, in a thread as it is there; what it tells is raised."""
    origin = Origin("worker 2", _SENDER, "worker 0", Patience(1.0))

    def call(data: bytes) -> object:
        lost: list[TaihuError] = []
        sink = Sink((Gradients,), places=lambda _: None, take=lambda *_: None, take_frame=lambda _: None)
        near, far = socket.socketpair()
        receiver = SocketPipe(PlainConnection(far), Outbox("worker 2"), Inbox(origin, sink), PipeEvents(lost.append))
        with near:
            near.sendall(_sealed_header(data) + data[HEADER_BYTES:])
        receiver.drain()
        receiver.close()
        for error in lost:
            assert "internal error" not in str(error), error  # noqa: S101
            raise error
        return None

    return call


def _unpack(_: Path) -> Callable[[bytes], object]:
    out = np.empty(64, dtype=np.int32)
    allowed = np.concatenate([np.arange(start, stop) for start, stop in _BOUNDS.tolist()])

    def call(data: bytes) -> object:
        count = data[0] if data else 0
        unpack(np.frombuffer(data[1:], dtype=np.uint8), _BOUNDS, min(count, 64), out)
        found = out[: min(count, 64)]
        assert (np.diff(found) > 0).all()  # noqa: S101
        assert np.isin(found, allowed).all()  # noqa: S101
        return found

    return call


def _few_bits(_: Path) -> Callable[[bytes], object]:
    places, steps = _sections()[2], np.array([0.5, 1.0, 2.0], dtype=np.float32)

    def call(data: bytes) -> object:
        out = np.empty(len(places), dtype=np.float32)
        read_codes(np.frombuffer(data, dtype=np.uint8), 4, places, _BOUNDS, steps, out)
        assert (np.abs(out) <= 7 * 2.0).all()  # noqa: S101
        return out

    return call


def _shared(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        try:
            message = parameter_server_pb2.SharedBuffer.FromString(data)
        except DecodeError:
            raise SharedMemoryError("no message") from None
        return open_shared(buffer_from_message(message))

    return call


def _descriptor(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        return decode_descriptor(np.frombuffer(data[:DESCRIPTOR_BYTES], dtype=np.uint8))

    return call


def _ring(_: Path) -> Callable[[bytes], object]:
    """A rank of three with a sum under way, and frames of its left neighbour."""

    def call(data: bytes) -> object:
        frame = sealed_frame(data)
        operations = Operations(
            WorkerIdentity("job", 0, 1), 3, {}, is_failed=lambda: False, on_end=lambda _: None, early_bytes=1 << 40
        )
        values = np.zeros(24, dtype=np.float32)
        ring = Ring(0, cut_chunks(buffer_layout(24), Group(0, 0), 3, 4))
        operation = Operation(OperationKey(At(1, 1), 0), values, ValueType.FP32, ring)
        operations._running[operation.key] = operation  # no links: nothing is sent
        try:
            sink = operations.sink
            if not isinstance(frame.header.kind, sink.kinds):
                raise frame.header.unexpected(*sink.kinds)
            if frame.header.is_dense:
                sink.take(frame.header, [frame.values], False)
            else:
                sink.take_frame(frame)
        except TaihuError:
            assert not values.any(), "a refused frame has changed the sum"  # noqa: S101
            raise
        return None

    return call


def _descriptors() -> SharedDescriptor:
    name = f"/dev/shm/taihu-1-2-3-{'0' * 32}"  # noqa: S108
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return SharedDescriptor(boot, name, bytes(16), 4096)


_HEADERS: Final = [
    pack_header(header(Gradients()), 32, crc32c(_ONES.tobytes())) + _ONES.tobytes(),
    pack_header(header(RingSegment(1)), 32, crc32c(_ONES.tobytes())) + _ONES.tobytes(),
    pack_header(header(SparseMessage(0), Encoding.SPARSE, 8, selected=1), 5, 0) + bytes(5),
]

_LAYOUT: Final = tensor_pb2.Layout()
_LAYOUT.layers.add(name="fc").tensors.add(name="weight", shape=[3, 4])

TARGETS: Final = (
    Target("frame", _written, (FrameError,), [sealed(each) for each in _frames()]),
    Target("sealed_frame", _resealed, (FrameError,), _frames()),
    Target("layout", _layout, (FrameError,), [_LAYOUT.SerializeToString()]),
    Target("metadata", _metadata, (FrameError,), [b"job\x003\x0077"]),
    Target("header", _header, (FrameError,), _HEADERS),
    Target("connection", _connection, (TaihuError,), _HEADERS),
    Target("sections", _unpack, (ValueError,), [bytes((6,)) + _sections()[1].tobytes()]),
    Target("few_bits", _few_bits, (ValueError,), [bytes((0x70, 0xE1, 0x7C))]),
    Target("ring", _ring, (FrameError,), _frames()),
    Target("shared_buffer", _shared, (SharedMemoryError,), [buffer_to_message(_descriptors()).SerializeToString()]),
    Target("descriptor", _descriptor, (SharedMemoryError,), [encode_descriptor(_descriptors()).tobytes()]),
)
