"""Parameters that servers update, on their way back while a script goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from taihu.core.base.errors import RunError
from taihu.torch.steps.live import LiveParameters
from taihu.torch.steps.opened import Opened
from taihu.torch.steps.served import Served
from taihu.torch.steps.server_updates import ServerUpdates
from taihu.torch.steps.turns import Brought
from taihu.worker.training.step_record import StepRecord


class Returning:
    """Waits for the parameters that a step has changed, each when it is read first, or all of them.

    Args:
        updates: the optimizers that servers carry out.
        parameters: the number of those that are exchanged.
        opened: returns the exchange that is open, None before there is one.
        in_backward: whether a backward has begun and not ended.
        is_divided: whether parameters do not stay here (ZeRO stage 3).
    """

    def __init__(
        self,
        updates: Served,
        parameters: Callable[[], int],
        opened: Callable[[], Opened | None],
        in_backward: Callable[[], bool],
        *,
        is_divided: bool,
    ) -> None:
        self._updates = updates
        self._is_divided = is_divided
        self._parameters = parameters
        self._opened = opened
        self._in_backward = in_backward
        # The step whose updates may still be on their way, and the groups that nobody has read since.
        self._step: tuple[Opened, StepRecord] | None = None
        self._unread: set[int] = set()

    def watch(self, updates: ServerUpdates) -> None:
        """Forwards may read the parameters of one of the optimizers from now on."""
        updates.watch(self.read, self.settle, self if self._is_divided else None)

    def pushed(self, opened: Opened, record: StepRecord, brought: Brought) -> None:
        """All gradients of a step are on their way: the parameters of these optimizers come from now on."""
        self._updates.pushed(brought)
        self._unread = set(range(len(opened.steps.exchange.plan.groups)))
        self._step = opened, record

    def read(self, numbers: Sequence[int]) -> None:
        """Return when the updated parameters `numbers` are here, which a module is about to read."""
        if self._in_backward():
            return  # what is computed again in backward has been read, and is pushed after that
        opened = self._opened()
        for number in numbers:
            if opened is not None:
                layer = opened.places.by_number[number]
                group = opened.steps.group_of(layer)
                if group in self._unread:
                    opened.steps.read(layer)
                    self._unread.discard(group)
            self._updates.of(number).read(number)

    def use(self, user: object, numbers: Sequence[int]) -> None:
        """Return when parameters `numbers` are here, to stay until `leave(user)`, where they do not stay as it is."""
        opened = self._opened()
        if opened is None or opened.live is None:
            self.read(numbers)
            return
        opened.live.use(user, [opened.places.by_number[number] for number in numbers])
        for number in numbers:
            self._updates.of(number).read(number)

    def leave(self, user: object) -> None:
        """`user`, who may have used nothing, uses nothing any more."""
        if (live := self._live) is not None:
            live.leave(user)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """In the block all parameters are here, and those of the last step."""
        self.settle()
        block, opened = object(), self._opened()
        # As a forward reads them.
        self.use(block, () if opened is None else opened.places.order[::-1])
        try:
            yield
        finally:
            self.leave(block)

    def settle(self) -> None:
        """Return when all parameters are those of the last step."""
        self.finish_last()
        if not self._in_backward():
            for number in range(self._parameters()):
                self._updates.of(number).read(number)

    def finish_last(self) -> None:
        """Return when nothing of the step before is under way."""
        if self._step is not None:
            (opened, record), self._step = self._step, None
            opened.steps.finish()
            self._unread.clear()
            plan = opened.steps.exchange.plan
            opened.steps.close(record)
            if opened.live is not None and opened.steps.exchange.plan is not plan:
                opened.live.regroup()

    def stepped(self, updates: ServerUpdates) -> None:
        """One of the script's optimizers steps, where servers have the gradients already."""
        refuse_within_backward()
        updates.stepped()
        if self._live is None:
            self.read(updates.at_step)

    def accumulates(self, number: int) -> None:
        """Autograd is about to add to the gradient of a parameter, in memory that may be on its way yet."""
        if (opened := self._opened()) is not None:
            opened.steps.gradients.bind_one(opened.places.by_number[number])

    @property
    def _live(self) -> LiveParameters | None:
        opened = self._opened()
        return None if opened is None else opened.live


def refuse_within_backward() -> None:
    """Raise RunError where a backward goes on."""
    if torch._C._current_graph_task_id() != -1:
        raise RunError(
            "step() was called within backward, where gradients are this worker's own: they are the means of all "
            "when backward has returned; call step() behind it"
        )
