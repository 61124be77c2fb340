"""Agreement between ranks: all open each other's memory, or none does."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from taihu.allreduce.same_host.path import DESCRIPTOR_BYTES, encode_descriptor, open_all
from taihu.core.base.errors import SharedMemoryError
from taihu.core.wire.frames.headers import ValueType
from taihu.core.wire.links.shared_memory import SharedBuffer


class Sums(Protocol):
    """A function that sums over all ranks, see `Communicator.allreduce`."""

    def allreduce(self, values: NDArray[Any], value_type: ValueType) -> None:
        """Replace `values` by their sums."""
        ...


def share_with_all(sums: Sums, rank: int, size: int, buffer: SharedBuffer | None) -> list[SharedBuffer] | None:
    """The buffers of all ranks, if every rank has opened them; all ranks call this, `buffer` is this one's."""
    cells = np.zeros((size, DESCRIPTOR_BYTES), dtype=np.float64)
    if buffer is not None:
        cells[rank] = encode_descriptor(buffer.descriptor)
    sums.allreduce(cells.ravel(), ValueType.FP64)
    opened = _open(rank, buffer, cells.astype(np.uint8))
    agreed = np.array([float(opened is not None)])
    sums.allreduce(agreed, ValueType.FP64)
    if opened is None or agreed[0] == size:
        return opened
    for other in opened:
        if other is not buffer:
            other.close()
    return None


def share_new(sums: Sums, rank: int, size: int, size_bytes: int) -> list[SharedBuffer] | None:
    """New buffers of `size_bytes`, one for each rank, if all can have them; all ranks call this. None has a name."""
    try:
        buffer = SharedBuffer.create(size_bytes)
    except SharedMemoryError:
        buffer = None
    try:
        return share_with_all(sums, rank, size, buffer)
    finally:
        if buffer is not None:
            buffer.unlink()


def _open(rank: int, buffer: SharedBuffer | None, descriptors: NDArray[np.uint8]) -> list[SharedBuffer] | None:
    if buffer is None:
        return None
    try:
        return open_all(buffer, rank, list(descriptors))
    except SharedMemoryError as error:
        structlog.get_logger().debug("no memory is shared", reason=str(error))
        return None
