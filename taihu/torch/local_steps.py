"""Local steps of a script: its optimizer updates here several times, and the difference is exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.torch.gradients.exchanged import Optimized
from taihu.torch.steps.steps import BackwardSteps

PREFIX: Final = "local."
"""Of the names of a state."""


@dataclass(eq=False)
class _Kept:
    """A parameter, the values that all workers have of it, and the momentum of its outer step, if it has one."""

    parameter: torch.nn.Parameter
    common: torch.Tensor
    velocity: torch.Tensor | None = None


class LocalSteps:
    """The local steps of one optimizer: DiLoCo (Douillard et al. 2023, algorithm 1) around a script's own loop.

    Gradients stay here. After every `exchange.local_steps` updates the difference that they have made goes in the
    place of a gradient, and the outer step changes the parameters that all had by the mean of all differences.

    Args:
        job: of the run.
        optimized: the optimizer, none of whose gradients is exchanged in backward.
        steps: of the run.
    """

    def __init__(self, job: Job, optimized: Optimized, steps: BackwardSteps) -> None:
        self._count = job.exchange.local_steps
        self._outer = job.exchanged_optimizer
        self._optimized = optimized
        self._steps = steps
        # By the identity of parameters.
        self._kept: dict[int, _Kept] = {}
        self._made = 0
        self.follow()

    @property
    def is_pending(self) -> bool:
        """Whether this worker has made updates that no exchange has brought to others."""
        return self._made > 0

    def follow(self) -> None:
        """Begin with parameters that are new, whose values all workers have alike, and forget those that are gone."""
        own = self._optimized.own()
        if self._kept.keys() != set(map(id, own)):
            self._kept = {id(p): self._kept.get(id(p)) or _Kept(p, p.detach().clone()) for p in own}

    def updated(self) -> None:
        """The optimizer has updated here; every so many times all workers exchange what that has changed."""
        self._made += 1
        if self._made == self._count:
            self.exchange()

    def exchange(self) -> None:
        """Have the parameters that follow from the updates of all workers, who call this together."""
        self._made = 0
        parameters = [p for p in self._optimized.own() if p.requires_grad]
        gradients = [p.grad for p in parameters]
        with torch.no_grad():
            for parameter in parameters:
                common = self._kept[id(parameter)].common
                parameter.grad = common - parameter
                parameter.copy_(common)
        self._steps.exchange_now(parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                self._step(self._kept[id(parameter)])
                parameter.grad = gradient
        self._steps.updated(self._optimized)

    def _step(self, kept: _Kept) -> None:
        """The outer step: by the mean difference, which is in the gradient, with Nesterov's momentum if any."""
        difference, momentum = kept.parameter.grad, self._outer.momentum
        assert difference is not None  # noqa: S101
        if momentum:
            if kept.velocity is None:
                kept.velocity = torch.zeros_like(kept.common)
            kept.velocity.mul_(momentum).add_(difference)
            difference = difference.add(kept.velocity, alpha=momentum)
        kept.parameter.add_(difference, alpha=-self._outer.learning_rate)
        kept.common.copy_(kept.parameter)

    def state(self) -> dict[str, torch.Tensor]:
        """All that goes on beside parameters and the optimizer's own state, by name."""
        self.follow()
        state = {PREFIX + "made": torch.tensor(self._made)}
        for number, parameter in enumerate(self._optimized.own()):
            kept = self._kept[id(parameter)]
            state[f"{PREFIX}common.{number}"] = kept.common.clone()
            if kept.velocity is not None:
                state[f"{PREFIX}momentum.{number}"] = kept.velocity.clone()
        return state

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave.

        Raises:
            ConfigError: it belongs to other parameters, or to an optimizer without local steps.
        """
        self.follow()
        own = self._optimized.own()
        for number, parameter in enumerate(own):
            common = state.get(f"{PREFIX}common.{number}")
            if common is None or common.shape != parameter.shape:
                raise ConfigError(
                    f"the state of the optimizer has no local steps of parameter {number}, of shape "
                    f"{tuple(parameter.shape)}: load one that the same script has saved with exchange.local_steps"
                )
        self._made = int(state[PREFIX + "made"])
        for number, parameter in enumerate(own):
            kept = self._kept[id(parameter)]
            kept.common.copy_(state[f"{PREFIX}common.{number}"])
            velocity = state.get(f"{PREFIX}momentum.{number}")
            kept.velocity = None if velocity is None else velocity.to(parameter.device, copy=True)
