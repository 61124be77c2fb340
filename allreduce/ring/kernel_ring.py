"""Sums around a ring that a kernel carries out by itself, over connections of neighbours that nothing else takes.

Each frame of `Operation` costs Python about a tenth of a millisecond in two threads of each rank: beside ten gigabits
a second that is as much as the kernel's own work. Here a whole sum is one call.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.operation import IsFailed
from taihu.allreduce.ring.passes import LARGEST_FRAME_BYTES, Pass, flat_pass
from taihu.core.base.errors import FrameError, MemberLostError, TaihuError
from taihu.core.system.clocks import monotonic, sleep
from taihu.core.system.sockets import SHUT_RDWR, Socket
from taihu.core.wire.links.inbox import damaged_error
from taihu.kernels.crc32c import HAS_INSTRUCTION
from taihu.kernels.ring_pass import STATE, Status, run_pass
from taihu.kernels.sums import ReduceKind, dtype_of

IS_POSSIBLE: Final = HAS_INSTRUCTION
"""Whether this machine's kernels can drive a ring."""
_LOOK_AGAIN_MS: Final = 50


def sum_number(number: int, steps: Pass, kind: ReduceKind, *, mean: bool) -> int:
    """The number that frames of the `number`-th sum say: no other sum of other values has it, or hardly one."""
    stamp = crc32(f"{kind} {mean}".encode(), steps.stamp) & 0x7FFFFFFF
    return stamp << 32 | number & 0xFFFFFFFF


def warm_up(kind: ReduceKind) -> None:
    """Compile the kernel of a kind, or load it from the disk cache, so that no sum that is measured waits for it."""
    state = np.zeros(1, dtype=STATE)
    nothing = flat_pass(0, 1, 0, 1)
    values = np.empty(0, dtype=dtype_of(kind))
    room = np.empty(0, dtype=np.uint8)
    status = run_pass(
        state, nothing.pieces, nothing.frames, np.empty(0, dtype=np.int64), values, room, kind == "fp16", 1.0, 0
    )
    assert status == Status.DONE  # noqa: S101


class KernelRing:
    """Rank `rank`'s part in sums of `size` ranks, one after the other; one thread calls it.

    Args:
        rank: the own one.
        size: at least 2.
        left: the connection to the left neighbour, of which frames come; it belongs to this object.
        right: the connection to the right neighbour, to which they go; it belongs to this object.
        reason_s: how long the reason is waited for when a neighbour's connection has ended.
    """

    def __init__(self, rank: int, size: int, left: Socket, right: Socket, reason_s: float) -> None:
        self._rank, self._size = rank, size
        self._left, self._right = left, right
        self._reason_s = reason_s
        self._number = 0
        # Of the last size: what is small and often summed has one.
        self._flat: tuple[tuple[int, int], Pass] | None = None
        self._state = np.zeros(1, dtype=STATE)
        self._room = np.empty(LARGEST_FRAME_BYTES, dtype=np.uint8)
        self.sent_bytes = self.received_bytes = 0
        """Bytes of values so far."""

    def allreduce(self, values: NDArray[Any], kind: ReduceKind, is_failed: IsFailed, *, mean: bool) -> None:
        """Replace `values`, shape (n,) of the kind's dtype, contiguous, by the sum or mean over all ranks.

        Raises:
            BaseException: what `is_failed` returned, which is asked while nothing moves.
            MemberLostError: a neighbour was lost.
            FrameError: a neighbour sums something else.
            DamagedFrameError: a frame came damaged.
        """
        usable = values.ndim == 1 and values.flags.c_contiguous and values.flags.writeable
        if values.dtype != dtype_of(kind) or not usable:
            raise ValueError(
                f"values of {values.dtype}, shape {values.shape}: expected contiguous {kind}, shape (n,)"
            )
        if self._flat is None or self._flat[0] != (len(values), values.itemsize):
            steps = flat_pass(self._rank, self._size, len(values), values.itemsize)
            self._flat = (len(values), values.itemsize), steps
        self.run(self._flat[1], values, kind, is_failed, mean=mean)

    def run(self, steps: Pass, values: NDArray[Any], kind: ReduceKind, is_failed: IsFailed, *, mean: bool) -> None:
        """Carry out a pass over `values`, of the kind's dtype; all ranks call this with the passes of one sum.

        Raises as `allreduce` does.
        """
        self._number += 1
        self._prepare(steps, sum_number(self._number, steps, kind, mean=mean))
        checksums = np.full(len(steps.frames), -1, dtype=np.int64)
        scale = 1.0 / self._size if mean else 1.0
        status = Status.WAITING
        while status is not Status.DONE:
            status = Status(
                run_pass(
                    self._state,
                    steps.pieces,
                    steps.frames,
                    checksums,
                    values,
                    self._room,
                    kind == "fp16",
                    scale,
                    _LOOK_AGAIN_MS,
                )
            )
            self._act_on(status, is_failed)
        self.sent_bytes += steps.sent_bytes
        self.received_bytes += steps.received_bytes

    def close(self) -> None:
        """End both connections."""
        for connection in (self._left, self._right):
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)
            connection.close()

    def _prepare(self, steps: Pass, number: int) -> None:
        self._state[:] = 0
        state = self._state[0]
        state["left"], state["right"] = self._left.fileno(), self._right.fileno()
        state["number"] = number
        state["sends"], state["receives"], state["own"] = steps.sends, steps.receives, steps.own
        state["added"], state["completed_from"] = steps.added, steps.completed_from

    def _act_on(self, status: Status, is_failed: IsFailed) -> None:
        """Raise where a pass cannot go on."""
        left, right = (f"worker {(self._rank + turn) % self._size}" for turn in (-1, 1))
        match status:
            case Status.WAITING:
                if (error := is_failed()) is not None:
                    raise error
            case Status.DAMAGED:
                frame = int(self._state[0]["received"])
                link = f"the link from {left} to worker {self._rank}"
                raise damaged_error(link, f"frame {frame} of sum {self._number} came damaged")
            case Status.LOST_LEFT | Status.LOST_RIGHT:
                lost = left if status is Status.LOST_LEFT else right
                raise self._reason(is_failed) or MemberLostError(f"{lost} was lost: its connection ended")
            case Status.WRONG_FRAME:
                raise self._mistake(left)

    def _reason(self, is_failed: IsFailed) -> BaseException | None:
        """The error that says more than that a connection has ended, if there is one soon."""
        deadline = monotonic() + self._reason_s
        while (error := is_failed()) is None and monotonic() < deadline:
            sleep(1e-3 * _LOOK_AGAIN_MS)
        return error

    def _mistake(self, peer: str) -> TaihuError:
        return FrameError(
            f"{peer} sent what does not belong to sum {self._number}: expected the same operations of values of the "
            "same size and type on all ranks, in the same order"
        )
