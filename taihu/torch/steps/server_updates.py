"""Parameters that servers update, on a worker: who reads them when, and whether the script goes on as it told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from taihu.core.base.errors import ConfigError, RunError
from taihu.torch.gradients.rules import ScriptOptimizer
from taihu.torch.gradients.sealed import SealedGradient
from taihu.torch.steps.modules import ModuleReads, Uses


class ServerUpdates:
    """The part of one optimizer in backward steps that is there only where servers update (`update="servers"`).

    Args:
        script: the optimizer that they carry out.
        model: whose modules read the parameters.
        names: of the parameters.
        parameters: in the order of their numbers; the exchange may have another one.
        first: the number of the first of them among those of all optimizers.
    """

    def __init__(
        self,
        script: ScriptOptimizer,
        model: torch.nn.Module,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        first: int = 0,
    ) -> None:
        self.script = script
        self.names = names
        self.parameters = parameters
        self._model = model
        self._first = first
        self._is_read = [False] * len(parameters)
        self._unread: list[int] = []
        self._has_begun = self._has_learnt = False
        self._reads: ModuleReads | None = None
        self._versions: list[int] = []
        # Learning rates: of the backward that has begun, and those that were sent, until `step`.
        self._now: tuple[float, ...] = ()
        self._sent: tuple[float, ...] | None = None
        self._unowned: Sequence[int] = ()

    @property
    def _numbers(self) -> range:
        return range(self._first, self._first + len(self.parameters))

    @property
    def at_step(self) -> Sequence[int]:
        """Numbers of parameters that `step` waits for, because no module is called around those who read them."""
        if self._reads is not None and self._reads.is_compiled:
            return self._numbers
        return self._unowned

    def watch(
        self, read: Callable[[Sequence[int]], None], settle: Callable[[], None], uses: Uses | None = None
    ) -> None:
        """Forwards may begin: `read(numbers)` comes before parameters are read, `settle()` before all of them.

        Where parameters do not stay, `uses` takes the place of `read`.
        """
        numbers = {id(p): number for number, p in zip(self._numbers, self.parameters, strict=True)}
        self._reads = ModuleReads(self._model, numbers, read, settle, uses)
        self._versions = [parameter._version for parameter in self.parameters]

    def read(self, number: int) -> None:
        """A parameter is complete, until its gradient is pushed again."""
        self._is_read[number - self._first] = True

    def brought(self, number: int) -> None:
        """A parameter has brought its gradient.

        Raises:
            RunError: nobody had waited for it, so that forward may have read an old one.
        """
        self._has_begun = True
        if self._is_read[number - self._first]:
            return
        if self._has_learnt:
            raise RunError(
                f"parameter {self.names[number - self._first]} was read, but no module that reads it was called: "
                'call optimizer.synchronize() before such a forward, or give update="workers"'
            )
        self._unread.append(number)

    def rates(self, *, may_rest: bool) -> tuple[float, ...]:
        """The learning rates of the backward that begins.

        Args:
            may_rest: whether all of the optimizer's parameters may be frozen meanwhile.

        Raises:
            ConfigError: the optimizer is not what it was.
            RunError: a parameter was written to here.
        """
        for name, parameter, version in zip(self.names, self.parameters, self._versions, strict=True):
            if parameter._version != version:
                raise RunError(
                    f'parameter {name} was written to here, and the servers hold another one: give update="workers"'
                )
            if parameter.dtype != torch.float32:
                raise RunError(
                    f'parameter {name} is {parameter.dtype} now, and the servers hold float32: give update="workers"'
                )
        self._now = self.script.rates(may_rest=may_rest)
        return self._now

    def take_turn(self) -> None:
        """The backward that has begun brings gradients of this optimizer, whose `step` is to follow.

        Raises:
            RunError: `step` has not followed the backward before that did so.
        """
        if self._sent is not None:
            raise RunError(
                'update="servers": backward began before the step() of the one before, and has brought the gradient '
                f"of {self.names[-1]} again: a block of optimizer.no_sync() adds gradients up, and "
                "requires_grad_(False) keeps out what a backward is not to train"
            )
        self._sent = self._now

    def pushed(self) -> None:
        """All gradients of a backward are on their way, and the parameters change from now on."""
        self._is_read = [False] * len(self._is_read)
        # What autograd still needs of the former values, it tells as it does behind an optimizer's step.
        torch.autograd.graph.increment_version(self.parameters)
        self._versions = [parameter._version for parameter in self.parameters]
        if self._has_begun and not self._has_learnt:
            self._has_learnt = True
            assert self._reads is not None  # noqa: S101
            self._unowned = self._reads.learn(self._unread)

    def _check_that_none_is_set(self) -> None:
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None and not isinstance(parameter.grad, SealedGradient):
                raise RunError(
                    f"step(): the gradient of {name} was set by hand, and servers have those alone that a backward "
                    'has brought: give update="workers"'
                )

    def stepped(self) -> None:
        """The script calls `step`.

        Raises:
            ConfigError: a learning rate was changed since backward began.
            RunError: no backward came before, and a gradient was set by hand.
        """
        sent, self._sent = self._sent, None
        if sent is None:
            self._check_that_none_is_set()
            return
        for number, (before, now) in enumerate(zip(sent, self.script.rates(may_rest=True), strict=True)):
            if before != now:
                raise ConfigError(
                    f'update="servers": the learning rate of parameter group {number} was {before:g} when backward '
                    f"began, and is {now:g} at step(): change it behind step(), as schedulers do, or before backward"
                )
