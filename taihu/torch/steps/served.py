"""The optimizers of a script that servers carry out: what they are for the exchange of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.torch.gradients.gradients import views_of
from taihu.torch.steps.server_updates import ServerUpdates
from taihu.torch.steps.turns import Brought

_ONE: Final = 1


class Served:
    """The optimizers, in the order in which they were wrapped: their positions are those of `Brought`."""

    def __init__(self) -> None:
        self._each: list[ServerUpdates] = []
        # By the numbers of parameters, and the identities of these.
        self._of: list[ServerUpdates] = []
        self._ids: set[int] = set()

    def add(self, updates: ServerUpdates) -> None:
        """Have servers carry out one more.

        Raises:
            ConfigError: another one has one of its parameters.
        """
        for name, parameter in zip(updates.names, updates.parameters, strict=True):
            if id(parameter) in self._ids:
                raise ConfigError(
                    f'update="servers": {name} belongs to another DistributedOptimizer already: give each parameter '
                    "to one of them"
                )
        self._each.append(updates)
        self._of += [updates] * len(updates.parameters)
        self._ids |= set(map(id, updates.parameters))

    @property
    def parameters(self) -> int:
        """The number of parameters of all."""
        return len(self._of)

    def others(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Those that no server updates: nobody else may write to what servers hold."""
        return [each for each in tensors if id(each) not in self._ids]

    def of(self, number: int) -> ServerUpdates:
        """The optimizer of a parameter."""
        return self._of[number]

    def rates(self) -> tuple[float, ...]:
        """The learning rates of the backward that begins, one for each parameter group of all.

        Raises:
            ConfigError: an optimizer is not what it was.
            RunError: a parameter was written to here; or the one optimizer has not stepped.
        """
        several = len(self._each) > _ONE
        rates = [rate for each in self._each for rate in each.rates(may_rest=several)]
        if not several:
            self._each[0].take_turn()
        return tuple(rates)

    def take_turns(self, brought: Brought) -> None:
        """The backward that has come to its end brings gradients of these of several.

        Raises:
            RunError: one of them has not stepped since it did so last.
        """
        for position in sorted(brought):
            self._each[position].take_turn()

    def pushed(self, brought: Brought) -> None:
        """All gradients of these are on their way, and their parameters change from now on."""
        for position in sorted(brought):
            self._each[position].pushed()

    def rules(self, order: Sequence[int]) -> UpdateRules:
        """The rules that servers carry out, where `order[layer]` is the number of the parameter of a layer."""
        return UpdateRules.joined([each.script.rules for each in self._each]).in_order(order)


def offer(
    layout: Layout, parameters: Sequence[torch.nn.Parameter], arena: NDArray[np.float32]
) -> Callable[[int], None]:
    """A function that puts this worker's values of a layer into the arena, where servers get them from."""
    places = views_of(layout, parameters, arena)

    def put(layer: int) -> None:
        places[layer].copy_(parameters[layer].detach())

    return put


def take_over(layout: Layout, parameters: Sequence[torch.nn.Parameter], arena: NDArray[np.float32]) -> None:
    """Have the parameters lie in the arena, which has the values of the servers."""
    for parameter, place in zip(parameters, views_of(layout, parameters, arena), strict=True):
        parameter.data = place
