"""Parameters that servers update, on a worker: who reads them when, and whether the script goes on as it told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.torch.gradients.gradients import views_of
from taihu.torch.gradients.order import with_layers
from taihu.torch.gradients.rules import ScriptOptimizer
from taihu.torch.gradients.sealed import SealedGradient
from taihu.torch.steps.modules import ModuleReads, Uses

__all__ = ["ServerUpdates"]


class ServerUpdates:
    """The part of backward steps that is there only where servers update (`update="servers"`).

    Args:
        script: the optimizer that they carry out.
        model: whose modules read the parameters.
        layout: a layer for each parameter.
        parameters: in its order, which gives them their numbers; the exchange may have another one.
    """

    def __init__(
        self,
        script: ScriptOptimizer,
        model: torch.nn.Module,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
    ) -> None:
        self.script = script
        self._model = model
        self._layout = layout
        self._parameters = parameters
        self._is_read = [False] * len(parameters)
        self._unread: list[int] = []
        self._has_begun = self._has_learnt = False
        self._reads: ModuleReads | None = None
        self._versions: list[int] = []
        self._sent: tuple[float, ...] | None = None
        self._unowned: Sequence[int] = ()

    @property
    def at_step(self) -> Sequence[int]:
        """Numbers of parameters that `step` waits for, because no module is called around those who read them."""
        if self._reads is not None and self._reads.is_compiled:
            return range(len(self._parameters))
        return self._unowned

    def rules(self, order: Sequence[int]) -> UpdateRules:
        """The optimizer that servers carry out, where `order[layer]` is the number of the parameter of a layer."""
        rules = self.script.rules
        return replace(rules, parameter_groups=tuple(rules.parameter_groups[number] for number in order))

    def offer(self, order: Sequence[int], arena: NDArray[np.float32]) -> Callable[[int], None]:
        """A function that puts this worker's values of a layer into the arena, where servers get them from."""
        places = list(self._places(order, arena))

        def put(layer: int) -> None:
            parameter, place = places[layer]
            place.copy_(parameter.detach())

        return put

    def take_over(self, order: Sequence[int], arena: NDArray[np.float32]) -> None:
        """Have the parameters lie in the arena, which has the values of the servers."""
        for parameter, place in self._places(order, arena):
            parameter.data = place

    def _places(
        self, order: Sequence[int], arena: NDArray[np.float32]
    ) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        parameters = [self._parameters[number] for number in order]
        return zip(parameters, views_of(with_layers(self._layout, order), parameters, arena), strict=True)

    def watch(
        self, read: Callable[[Sequence[int]], None], settle: Callable[[], None], uses: Uses | None = None
    ) -> None:
        """Forwards may begin: `read(numbers)` comes before parameters are read, `settle()` before all of them.

        Where parameters do not stay, `uses` takes the place of `read`.
        """
        numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._reads = ModuleReads(self._model, numbers, read, settle, uses)
        self._versions = [parameter._version for parameter in self._parameters]

    def read(self, number: int) -> None:
        """A parameter is complete, until its gradient is pushed again."""
        self._is_read[number] = True

    def brought(self, number: int) -> None:
        """A parameter has brought its gradient.

        Raises:
            RunError: nobody had waited for it, so that forward may have read an old one.
        """
        self._has_begun = True
        if self._is_read[number]:
            return
        if self._has_learnt:
            raise RunError(
                f"parameter {self._layout.layers[number].name} was read, but no module that reads it was called: "
                'call optimizer.synchronize() before such a forward, or give update="workers"'
            )
        self._unread.append(number)

    def rates(self) -> tuple[float, ...]:
        """The learning rates of the backward that begins.

        Raises:
            ConfigError: the optimizer is not what it was.
            RunError: `step` has not followed the backward before, or a parameter was written to here.
        """
        if self._sent is not None:
            raise RunError(
                'update="servers": backward began before the step() of the one before: a block of '
                "optimizer.no_sync() adds gradients up"
            )
        for number, (parameter, version) in enumerate(zip(self._parameters, self._versions, strict=True)):
            if parameter._version != version:
                raise RunError(
                    f"parameter {self._layout.layers[number].name} was written to here, and the servers hold another "
                    'one: give update="workers"'
                )
            if parameter.dtype != torch.float32:
                raise RunError(
                    f"parameter {self._layout.layers[number].name} is {parameter.dtype} now, and the servers hold "
                    'float32: give update="workers"'
                )
        self._sent = self.script.rates()
        return self._sent

    def pushed(self) -> None:
        """All gradients of a backward are on their way, and parameters change from now on."""
        self._is_read = [False] * len(self._is_read)
        # What autograd still needs of the former values, it tells as it does behind an optimizer's step.
        torch.autograd.graph.increment_version(self._parameters)
        self._versions = [parameter._version for parameter in self._parameters]
        if self._has_begun and not self._has_learnt:
            self._has_learnt = True
            assert self._reads is not None  # noqa: S101
            self._unowned = self._reads.learn(self._unread)

    def _check_that_none_is_set(self) -> None:
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not isinstance(parameter.grad, SealedGradient):
                raise RunError(
                    f"step(): the gradient of {self._layout.layers[number].name} was set by hand, and servers have "
                    'those alone that a backward has brought: give update="workers"'
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
        for number, (before, now) in enumerate(zip(sent, self.script.rates(), strict=True)):
            if before != now:
                raise ConfigError(
                    f'update="servers": the learning rate of parameter group {number} was {before:g} when backward '
                    f"began, and is {now:g} at step(): change it behind step(), as schedulers do, or before backward"
                )
