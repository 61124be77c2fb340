"""What exchanges have in common whose groups do not have memory all the time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kernels.half import LARGEST
from kernels.half_sums import warm_up
from taihu.coordination.plan import Plan
from taihu.job import Job
from taihu.wire.clock import Clock
from taihu.wire.codec import BYTES_PER_VALUE
from worker.exchange.group_memory import GroupMemory
from worker.exchange.held_gradients import HeldGradients
from worker.exchange.interface import GradientExchange
from worker.exchange.times import GroupTimes
from worker.memory.arenas import Arenas

__all__ = ["MemoryExchange"]


class MemoryExchange(GradientExchange):
    """See `GradientExchange`; subclasses tell `_memory`, while they hold `_guard`, what is pushed and what comes."""

    _memory: GroupMemory
    _guard: AbstractContextManager[Any]
    _clock: Clock
    _times: list[GroupTimes]

    def __init__(self, job: Job, arenas: Arenas) -> None:
        self._job = job
        self._arenas = arenas
        self._gradients = HeldGradients(job.train)
        self._largest = LARGEST[arenas.half.kind] if arenas.half is not None else 0.0
        if arenas.half is not None:
            warm_up(arenas.half.kind)

    @property
    def loss_scale(self) -> float:
        """See `GradientExchange.loss_scale`."""
        return self._gradients.loss_scale

    @property
    def skipped_steps(self) -> int:
        """See `GradientExchange.skipped_steps`."""
        return self._gradients.skipped_steps

    def push(self, group: int) -> None:
        """See `GradientExchange.push`."""
        fits = self._memory.narrow(group, self._largest)
        self._times[group].ready_s = self._clock.now()
        ready = self._gradients.add(group, fits=fits)
        if ready and self._job.holds_gradients:
            self._agree_on_skipping()
        for each in ready:
            self._submit(each)

    def _agree_on_skipping(self) -> None:
        """All gradients of a step are there: `_gradients.overflowed` says whether this worker's fit."""

    @abstractmethod
    def _submit(self, group: int) -> None:
        """Send the group's gradients; in fp16 all of the step are there, and `_gradients` knows whether they fit."""

    def _memory_of(self, plan: Plan) -> GroupMemory:
        """The memory of the groups of `plan`; none of them has any that is given back."""
        return GroupMemory(
            self._arenas,
            plan.layout,
            plan.groups,
            bucket_elements=self._job.exchange.bucket_bytes // BYTES_PER_VALUE,
            live_elements=self._job.exchange.live_bytes // BYTES_PER_VALUE,
            ask=self._ask,
            holds_gradients=self._job.holds_gradients,
        )

    def _ask(self, group: int) -> None:
        """Fetch the group's parameters; overridden where they do not stay."""
        raise AssertionError(f"group {group} was asked for, although its parameters stay")

    @abstractmethod
    def _wait_until(self, predicate: Callable[[], bool], what: Callable[[], str]) -> None:
        """Return when `predicate` is true; raises as `complete` does, `what` says what did not come in time."""

    def wait(self, group: int) -> None:
        """See `GradientExchange.wait`."""
        if not self._memory.fetches:
            self.complete(group)
            return
        # Whether a backward comes behind the last group, or another forward of a test, is not known here: what was
        # used may stay for the one, where there is room for all that comes before, but is not asked for.
        order = (*reversed(range(group)), *range(group + 1, len(self.groups)))
        chosen = self._memory.beside(group, order)
        self._use(group, chosen[:group], chosen[group:])

    def recall(self, group: int, *, ahead: bool = True) -> None:
        """See `GradientExchange.recall`."""
        if self._memory.fetches:
            self._use(group, self._memory.beside(group, self._needed_after(group) if ahead else ()))

    def _needed_after(self, group: int) -> Iterator[int]:
        """The groups in the order in which backward and the next forward need them, while `group` is used."""
        yield from range(group + 1, len(self.groups))
        # These have been pushed in this step, and come down updated while backward's other gradients go up; but what
        # is recomputed needs the room in an order of its own.
        if not self._job.holds_gradients and self._job.train.recompute == "none":
            yield from reversed(range(group))

    def prepare(self, group: int) -> None:
        """See `GradientExchange.prepare`."""
        if not self._memory.has_room(group):
            self._wait_until(
                lambda: self._memory.has_room(group), lambda: f"room for the gradients of group {group}, a sum,"
            )
        with self._guard:
            self._memory.take_room(group)
        self.recall(group)

    def _use(self, group: int, following: Sequence[int], staying: Sequence[int] = ()) -> None:
        if self._memory.keeps and self._memory.is_summing(group):
            self._wait_until(lambda: not self._memory.is_summing(group), lambda: self._awaited(group))
        # Whether a group is asked for again must not depend on when it comes: workers who gather it do so together.
        strays = [each for each in range(len(self.groups)) if self._memory.is_stray(each, group, *following)]
        for stray in strays:
            self._wait_for_parameters(stray)
        with self._guard:
            kept = self._memory.use(group, following, staying)
        for each in kept:
            self._memory.widen(each)
            with self._guard:
                self._memory.arrived(each)
        self._wait_for_parameters(group)

    def _wait_for_parameters(self, group: int) -> None:
        if not self._memory.is_here(group):
            self._wait_until(lambda: self._memory.is_here(group), lambda: self._awaited(group))

    def _awaited(self, group: int) -> str:
        """What has not come of a group whose parameters are waited for."""
        return f"the {'sum' if self._memory.is_summing(group) else 'parameters'} of group {group}"
