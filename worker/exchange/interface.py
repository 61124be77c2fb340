"""The exchange of gradients for parameters, in three verbs: begin a step, push a group, wait for a group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from taihu.coordination.plan import Plan
from taihu.planner.groups import Group
from worker.exchange.times import GroupTimes

__all__ = ["ExchangeTotals", "GradientExchange"]


@dataclass(frozen=True)
class ExchangeTotals:
    """What has crossed the network so far, headers included, in bytes."""

    sent_bytes: int
    received_bytes: int


class GradientExchange(ABC):
    """Turns the gradient arena of this worker into the updated parameter arena, group by group.

    Ordering: groups may be pushed in any order, each once per step; all workers use the same order, because a bounded
    number of frames is under way and each is answered when it has come from everybody. Ownership: from `push` until
    `wait` returns, the group's range of both arenas belongs to the exchange. Completion: when `wait` returns, the
    group's parameters are those of the step just pushed. Memory: where groups do not have some all the time (ZeRO
    stages 2 and 3), `prepare` comes before backward, and what `wait` or `prepare` promise of one group ends with the
    next call for another. Threads: one thread calls all of these.
    """

    plan: Plan

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of the present plan."""
        return self.plan.groups

    @property
    @abstractmethod
    def path(self) -> str:
        """How values travel: `same-host`, `tcp` or `grpc`, or several of them; `none` of a worker alone."""

    @property
    def loss_scale(self) -> float:
        """What the loss of the step that has begun is multiplied by; 1 unless gradients travel as fp16."""
        return 1.0

    @property
    def skipped_steps(self) -> int:
        """How many steps changed nothing, because their gradients did not fit into fp16."""
        return 0

    @abstractmethod
    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; every group has been waited for, and all workers do so before the same step."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """Start step `step` (from 1); every group of the step before has been waited for."""

    @abstractmethod
    def push(self, group: int) -> None:
        """Send the group's gradients; returns at once."""

    @abstractmethod
    def complete(self, group: int) -> None:
        """Return when the group that was pushed has been summed and updated by all.

        Raises:
            ExchangeError, MemberLostError, RunError: the step cannot be completed; the message says why.
        """

    def wait(self, group: int) -> None:
        """Return when the group's updated parameters are in the arena; groups are read in forward order.

        Raises:
            ExchangeError, MemberLostError, RunError: as `complete`.
        """
        self.complete(group)

    def recall(  # noqa: B027 - nothing to do where everything stays
        self, group: int, *, ahead: bool = True
    ) -> None:
        """Return when the group's parameters, which are complete, are in the arena.

        With `ahead` groups are recalled in backward order, so that it is known which come next.
        """

    def prepare(self, group: int) -> None:  # noqa: B027 - nothing to do where everything stays
        """Return when backward may read the group's parameters and write its gradients."""

    def agree(self, flags: NDArray[np.float64]) -> None:  # noqa: B027 - nothing to do where each acts for itself
        """Replace `flags`, shape (n,), by those of worker 0, where all workers have to read parameters together."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Make every present and later `wait` raise `error`; may be called by any thread."""

    @abstractmethod
    def totals(self) -> ExchangeTotals:
        """Bytes so far."""

    @abstractmethod
    def group_times(self) -> Sequence[GroupTimes]:
        """When each group of the present step was sent and answered."""

    @abstractmethod
    def close(self) -> None:
        """End the exchange in good order; nothing may be under way."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self.fail(value)
        self.close()
