"""The path between workers that all run on one machine: groups are summed in memory that they share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.operation import IsFailed, Operation, reduce_kind
from taihu.allreduce.order.turns import InTurn, Rank
from taihu.allreduce.ring.schedule import Ring
from taihu.allreduce.same_host.allreduce import SharedAllreduce
from taihu.core.base.errors import SharedMemoryError
from taihu.core.wire.links.shared_memory import SharedBuffer, SharedDescriptor, open_shared

DESCRIPTOR_BYTES: Final = 512


class SameHostPath:
    """Carries out operations of `rank`, which has this number, on a shared buffer, one after the other (`InTurn`).

    `buffers` are those of all ranks.
    """

    def __init__(self, number: int, buffers: Sequence[SharedBuffer], rank: Rank) -> None:
        self._number = number
        self._allreduce = SharedAllreduce(number, buffers)
        self._data = buffers[number].array(np.uint8, buffers[number].size_bytes)
        self._address = self._data.ctypes.data
        # To ask for an address takes microseconds, and operations have the same arena: that of the last one.
        self._last: tuple[NDArray[Any] | None, int | None] = None, None
        self._turns = InTurn("same-host", self._carry_out, self._allreduce.restart, rank)

    def takes(self, operation: Operation) -> bool:
        """Whether the operation is a sum of values in the shared buffer."""
        return isinstance(operation.schedule, Ring) and self._offset(operation.values) is not None

    def start(self, operation: Operation) -> None:
        """Queue an operation that `takes` holds for."""
        self._turns.start(operation)

    def hold_next(self) -> None:
        """Have the operation that is started next wait for `help`."""
        self._turns.hold_next()

    def help(self) -> None:
        """Carry it out in this thread, unless there is something before it."""
        self._turns.help()

    def abort(self, attempt: int) -> None:
        """Give up operations of attempts before this one; returns when all ranks have, or when all has failed."""
        self._turns.abort(attempt)

    def close(self) -> None:
        """End when everything queued is done."""
        self._turns.close()

    def _offset(self, values: NDArray[Any]) -> int | None:
        """The first byte of `values` in the shared buffer."""
        last, offset = self._last
        if values is last:
            return offset
        start, size = values.ctypes.data - self._address, len(self._data)
        inside = start >= 0 and start + values.nbytes <= size and start % values.itemsize == 0
        offset = start if inside else None
        self._last = values, offset
        return offset

    def _carry_out(self, operation: Operation, is_failed: IsFailed) -> None:
        ring, offset = operation.schedule, self._offset(operation.values)
        assert isinstance(ring, Ring)  # noqa: S101
        assert offset is not None  # noqa: S101
        base = offset // operation.values.itemsize
        pieces = [piece for frame in chain.from_iterable(ring.chunks) for piece in frame.pieces]
        if pieces:
            self._allreduce.allreduce(
                base + min(piece.start for piece in pieces),
                base + max(piece.stop for piece in pieces),
                reduce_kind(operation.value_type),
                own=[(base + p.start, base + p.stop) for frame in ring.chunks[self._number] for p in frame.pieces],
                mean=operation.scale != 1.0,
                is_failed=is_failed,
            )
        operation.on_final(list(chain.from_iterable(ring.chunks)))
        # What a ring would have sent: the planner compares groups by it.
        operation.sent_bytes = operation.received_bytes = ring.sent_elements * operation.values.itemsize


def encode_descriptor(descriptor: SharedDescriptor) -> NDArray[np.uint8]:
    """The descriptor as `DESCRIPTOR_BYTES` bytes, uint8."""
    fields = {**asdict(descriptor), "token": descriptor.token.hex()}
    text = json.dumps(fields).encode().ljust(DESCRIPTOR_BYTES)
    return np.frombuffer(text[:DESCRIPTOR_BYTES], dtype=np.uint8)


def decode_descriptor(data: NDArray[np.uint8]) -> SharedDescriptor:
    """The descriptor that `encode_descriptor` wrote; raises SharedMemoryError for anything else."""
    try:
        fields = json.loads(data.tobytes())
        boot_id, path, size_bytes = fields["boot_id"], fields["path"], fields["size_bytes"]
        token = bytes.fromhex(fields["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise SharedMemoryError(f"a peer's shared buffer: not a descriptor: {error!r}") from None
    if not (isinstance(boot_id, str) and isinstance(path, str) and isinstance(size_bytes, int) and size_bytes >= 0):
        raise SharedMemoryError("a peer's shared buffer: not a descriptor")
    return SharedDescriptor(boot_id, path, token, size_bytes)


def open_all(own: SharedBuffer, rank: int, descriptors: Sequence[NDArray[np.uint8]]) -> list[SharedBuffer]:
    """Every rank's buffer; `own` stands at `rank`.

    Raises:
        SharedMemoryError: one cannot be opened, or has another size. None stays open but the own one.
    """
    opened: list[SharedBuffer] = []
    try:
        for other, data in enumerate(descriptors):
            opened.append(own if other == rank else open_shared(decode_descriptor(data)))
            if opened[-1].size_bytes != own.size_bytes:
                raise SharedMemoryError(f"shared buffer of worker {other}: another size than that of worker {rank}")
    except SharedMemoryError:
        for buffer in opened:
            if buffer is not own:
                buffer.close()
        raise
    return opened
