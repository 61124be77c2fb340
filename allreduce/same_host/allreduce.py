"""Allreduce between processes of one machine, directly in the buffers that they share.

Every rank sums one chunk of everybody's buffer and writes the sum into all of them: no value is copied to be sent.
Chunk c is summed in the order of ranks c, c + 1, ..., c - 1 (mod P), as a ring sums it (`allreduce.ring.schedule`),
so both give the same bits, equal on all ranks.

Each rank has a counter in its own buffer. An odd value says that its contribution to a call is ready, the next even
one that its chunk is written; two waits for everybody's counter separate contributing, summing and reading. When
the run goes back all counters jump to their attempt's first number, higher than any before, and say beside it how far
they had come: who waits in an attempt that another rank has given up sees whether that rank had done its part. A rank
may be a step ahead when it gives up, so that others still end what it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from taihu.allreduce.order.operation import IsFailed
from taihu.allreduce.ring.schedule import summation_order
from taihu.core.base.errors import ExchangeError, StaleError
from taihu.core.planner.partition import slice_bounds
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.kernels.futex import publish, wait_until
from taihu.kernels.shared_reduce import reduce_to_all, warm_up
from taihu.kernels.sums import REDUCE_KINDS, ReduceKind, dtype_of

# One cache line of control words: the counter, what the call is about, and the counter before the attempt began.
_COUNTER: Final = 0
_CALL: Final = slice(1, 5)
_REACHED: Final = 5
_ATTEMPT_BITS: Final = 32
"""The counter's upper bits say in which attempt it counts."""


def _never() -> None:
    return None


class Mark(IntEnum):
    """Numbers that a rank counts up within calls, and others wait for; each is the place of its control word.

    Each has a cache line of its own.
    """

    BROUGHT = 8
    REDUCED = 16


class SharedAllreduce:
    """Rank `rank`'s part in allreduces over buffers that belong to this object from creation to end.

    All ranks make the same calls in the same order, each from one thread.

    Args:
        rank: the own one.
        buffers: one for each rank, all of one size; new ones, in which nothing was reduced yet.

    Raises:
        ValueError: they are not.
    """

    def __init__(self, rank: int, buffers: Sequence[SharedBuffer]) -> None:
        sizes = {buffer.size_bytes for buffer in buffers}
        if not 0 <= rank < len(buffers) or len(sizes) != 1:
            seen = f"rank {rank} with {len(buffers)} shared buffers of {sorted(sizes)} bytes"
            raise ValueError(f"{seen}: expected one for each rank, all of one size")
        self._rank = rank
        self._size = len(buffers)
        self._bytes = sizes.pop()
        self._controls = [buffer.control for buffer in buffers]
        if self._controls[rank][_COUNTER]:
            raise ValueError(f"shared buffer of rank {rank} was used by another allreduce: expected a new one")
        self._others = [control for other, control in enumerate(self._controls) if other != rank]
        # The views keep the memory mapped as long as its addresses are used.
        self._data = [buffer.array(np.uint8, self._bytes) for buffer in buffers]
        order = summation_order(rank, self._size)
        self._addresses = np.array([self._data[other].ctypes.data for other in order], dtype=np.int64)
        self._counter = 0
        self._calls = 0
        self._failed = False

    @property
    def behind(self) -> list[int]:
        """The ranks that have not come as far as this one."""
        return [rank for rank, control in enumerate(self._controls) if control[_COUNTER] < self._counter]

    def warm_up(self, value_type: ReduceKind) -> None:
        """Compile the kernels before the first call, so that nobody waits for it."""
        warm_up(value_type)
        counters = np.ones(1, dtype=np.int64)
        publish(counters, 0, 1)
        wait_until(counters, 0, 1)

    def allreduce(
        self,
        start: int,
        stop: int,
        value_type: ReduceKind,
        *,
        own: Sequence[tuple[int, int]] | None = None,
        mean: bool = False,
        is_failed: IsFailed = _never,
    ) -> None:
        """Replace elements [start, stop) of every rank's data area by their sum, or mean, over the ranks.

        Additions are rounded to the type one by one. The mean is the sum times 1 / P.

        Args:
            start: the first element, counted in values of the type from the start of the data area.
            stop: the one after the last.
            own: ranges that this rank sums; those of all ranks cover [start, stop) once. By default, one of P ranges
                of equal size.
            value_type: of fp16 and bf16 the area holds the codes of `taihu.kernels.base.half`.
            mean: whether the mean is wanted.
            is_failed: asked at least every 50 ms while waiting; an error that it returns ends the wait.

        Raises:
            ValueError: a range does not lie in the data area, or the type is not known. Nothing has changed.
            ExchangeError: another rank made another call, or an earlier call failed; the range holds anything then.
            StaleError: another rank has given up this attempt; the range holds anything then.
            BaseException: what `is_failed` returned; the range holds anything then.
        """
        self._check(start, stop, value_type)
        if any(not start <= begin <= end <= stop for begin, end in own or ()):
            raise ValueError(f"ranges to sum {list(own or ())}: expected ranges within [{start}, {stop})")
        if own is None:
            begin, end = slice_bounds(stop - start, self._size, self._rank)
            own = [(start + begin, start + end)]
        self.begin(start, stop, value_type, mean=mean, is_failed=is_failed)
        self.reduce(own, value_type, mean=mean)
        self.end(is_failed)

    def begin(
        self, start: int, stop: int, value_type: ReduceKind, *, mean: bool = False, is_failed: IsFailed = _never
    ) -> None:
        """Begin a call, about which all ranks say the same; returns when all have contributed.

        What was contributed may be `reduce`d, and `end` ends the call. Ranks that contribute part by part `mark` what
        they have done, and `wait_for` the marks of all.

        Raises:
            ExchangeError, StaleError, BaseException: as `allreduce` does.
        """
        if self._failed:
            raise ExchangeError(f"shared allreduce of rank {self._rank}: an earlier call failed; make new buffers")
        self._failed = True
        self._calls += 1
        self._controls[self._rank][_CALL] = (start, stop, REDUCE_KINDS.index(value_type), mean)
        self._meet(is_failed)
        self._expect_same_calls()

    def reduce(
        self, own: Sequence[tuple[int, int]], value_type: ReduceKind, *, mean: bool = False, place: int | None = None
    ) -> None:
        """Sum the ranges `own` of all data areas into all of them; this rank's area is at address `place` if given.

        Ranges are not checked.
        """
        addresses = self._addresses
        if place is not None:
            # The own one comes first in the order of summation.
            addresses = addresses.copy()
            addresses[0] = place
        scale = 1.0 / self._size if mean else 1.0
        for begin, end in own:
            reduce_to_all(addresses, begin, end, value_type, scale)

    def end(self, is_failed: IsFailed = _never) -> None:
        """End a call; returns when all ranks have reduced their parts."""
        self._meet(is_failed)
        self._failed = False

    def mark(self, mark: Mark, count: int) -> None:
        """Say how often this rank has done something."""
        publish(self._controls[self._rank], int(mark), count)

    def wait_for(self, mark: Mark, count: int, is_failed: IsFailed = _never) -> None:
        """Return when all others have marked it so often; raises what `is_failed` returned where one never will."""
        self._wait_for_all(int(mark), count, is_failed)

    def _check(self, start: int, stop: int, value_type: ReduceKind) -> None:
        elements = self._bytes // dtype_of(value_type).itemsize
        if not 0 <= start <= stop <= elements:
            raise ValueError(f"{value_type} elements [{start}, {stop}) to reduce: expected a range of {elements}")

    def restart(self, attempt: int, is_failed: IsFailed = _never) -> None:
        """Count anew in a higher attempt, also after a call that was given up; returns when all ranks do so.

        No rank writes to another one's buffer from then on, until the next call. Calls that this rank has ended end
        well on all ranks.

        Raises:
            BaseException: what `is_failed` returned.
        """
        # Whoever has to read this is here before it is written again: all meet.
        self._controls[self._rank][_REACHED] = self._counter
        self._counter = attempt << _ATTEMPT_BITS
        publish(self._controls[self._rank], _COUNTER, self._counter)
        self._wait_for_all(_COUNTER, self._counter, is_failed)
        self._failed = False

    def _meet(self, is_failed: IsFailed) -> None:
        """Say that this rank has come so far, and wait until all have; raises StaleError if one went back before."""
        self._counter += 1
        publish(self._controls[self._rank], _COUNTER, self._counter)
        self._wait_for_all(_COUNTER, self._counter, is_failed)
        end = ((self._counter >> _ATTEMPT_BITS) + 1) << _ATTEMPT_BITS
        if any(control[_COUNTER] >= end and control[_REACHED] < self._counter for control in self._others):
            raise StaleError("another rank has given up this attempt")

    def _wait_for_all(self, word: int, count: int, is_failed: IsFailed) -> None:
        for control in self._others:
            while not wait_until(control, word, count):
                # Whoever has left in good order had come before that, and is waited for no more.
                if (failure := is_failed()) is not None and control[word] < count:
                    raise failure

    def _expect_same_calls(self) -> None:
        """Refuse to sum what does not belong together; all ranks see the same calls, so all of them refuse."""
        calls = [control[_CALL].tolist() for control in self._controls]
        for rank, call in enumerate(calls):
            if call != calls[0]:
                raise ExchangeError(
                    f"shared allreduce {self._calls}: rank {rank} calls for {_describe(*call)}, "
                    f"rank 0 for {_describe(*calls[0])}; expected the same call of all ranks"
                )


def _describe(start: int, stop: int, kind: int, mean: int) -> str:
    return f"the {'mean' if mean else 'sum'} of {REDUCE_KINDS[kind]} [{start}, {stop})"
