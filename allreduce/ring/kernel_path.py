"""The path of sums around a ring that a kernel carries out: of those of which nobody needs a part on the way."""

from __future__ import annotations

from itertools import chain
from typing import Final

from taihu.allreduce.order.operation import IsFailed, Operation, reduce_kind
from taihu.allreduce.order.turns import InTurn, Rank
from taihu.allreduce.ring.kernel_ring import KernelRing
from taihu.allreduce.ring.passes import Pass, pass_of
from taihu.allreduce.ring.schedule import Chunks, Ring

# Of several plans; a plan has fewer groups.
_KNOWN_PASSES: Final = 1024


class KernelRingPath:
    """Carries out operations of `rank`, which has this number, by `ring`, one after the other (`InTurn`).

    Parts of a result are told of by a thread of their own, so that the next sum goes on beside an update.

    Where the run goes back, nobody knows which frames are under way: the ring is closed, and from then on nothing is
    taken here, on any rank.
    """

    def __init__(self, ring: KernelRing, number: int, rank: Rank) -> None:
        self._ring = ring
        self._number = number
        self._rank = rank
        self._is_usable = True
        # By the chunks of a group, which are the same objects in each step of a plan.
        self._passes: dict[int, tuple[Chunks, Pass]] = {}
        self._tell = InTurn("kernel-ring-parts", _tell_of_parts, _nothing_under_way, rank)
        self._turns = InTurn("kernel-ring", self._carry_out, self._restart, rank, self._summed)

    def start(self, operation: Operation) -> None:
        """Queue an operation that `takes` holds for."""
        self._turns.start(operation)

    def takes(self, operation: Operation) -> bool:
        """Whether the operation is a group's sum that may be told of when it is complete.

        Calls, which belong to no plan, come in between by other threads, in no order that all ranks have.
        """
        schedule = operation.schedule
        is_group = operation.key.at.plan > 0 and isinstance(schedule, Ring) and schedule.is_whole
        return self._is_usable and is_group and operation.is_summed_at_once

    def abort(self, attempt: int) -> None:
        """Give up operations of attempts before this one, and take none any more."""
        self._is_usable = False
        self._turns.abort(attempt)
        self._tell.abort(attempt)

    def close(self) -> None:
        """End when everything queued is done."""
        self._turns.close()
        self._tell.close()

    def _carry_out(self, operation: Operation, is_failed: IsFailed) -> None:
        ring = operation.schedule
        assert isinstance(ring, Ring)  # noqa: S101
        steps = self._pass(ring.chunks, operation.values.itemsize)
        kind, mean = reduce_kind(operation.value_type), operation.scale != 1.0
        self._ring.run(steps, operation.values, kind, is_failed, mean=mean)
        operation.sent_bytes, operation.received_bytes = steps.sent_bytes, steps.received_bytes

    def _summed(self, operation: Operation) -> None:
        if operation.is_told_at_end:
            self._rank.finish(operation)
        else:
            self._tell.start(operation)

    def _pass(self, chunks: Chunks, itemsize: int) -> Pass:
        known = self._passes.get(id(chunks))
        if known is None or known[0] is not chunks:
            if len(self._passes) == _KNOWN_PASSES:
                self._passes.clear()
            known = self._passes[id(chunks)] = chunks, pass_of(self._number, chunks, itemsize)
        return known[1]

    def _restart(self, attempt: int, is_failed: IsFailed) -> None:
        self._ring.close()
        self._passes.clear()


def _tell_of_parts(operation: Operation, is_failed: IsFailed) -> None:
    ring = operation.schedule
    assert isinstance(ring, Ring)  # noqa: S101
    operation.on_final(list(chain.from_iterable(ring.chunks)))


def _nothing_under_way(attempt: int, is_failed: IsFailed) -> None:
    """Others have no part in what is told here."""
