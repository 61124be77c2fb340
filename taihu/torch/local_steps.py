"""Local steps of a script: its optimizer updates here several times, and the difference is exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.torch.exchanged import Optimized
from taihu.torch.steps import BackwardSteps

__all__ = ["PREFIX", "LocalSteps"]

PREFIX: Final = "local."
"""Of the names of a state."""


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
        # Of parameters by their identity: the values that all workers have, and the momentum of the outer step.
        self._common: dict[int, torch.Tensor] = {}
        self._momentum: dict[int, torch.Tensor] = {}
        self._made = 0
        self.follow()

    @property
    def is_pending(self) -> bool:
        """Whether this worker has made updates that no exchange has brought to others."""
        return self._made > 0

    def follow(self) -> None:
        """Begin with parameters that are new, whose values all workers have alike."""
        with torch.no_grad():
            for parameter in self._optimized.own():
                if id(parameter) not in self._common:
                    self._common[id(parameter)] = parameter.detach().clone()

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
                common = self._common[id(parameter)]
                parameter.grad = common - parameter
                parameter.copy_(common)
        self._steps.exchange_now(parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                self._step(parameter)
                self._common[id(parameter)].copy_(parameter)
                parameter.grad = gradient
        self._steps.updated(self._optimized)

    def _step(self, parameter: torch.nn.Parameter) -> None:
        """The outer step: by the mean difference, which is in the gradient, with Nesterov's momentum if any."""
        difference, momentum = parameter.grad, self._outer.momentum
        assert difference is not None  # noqa: S101
        if momentum:
            velocity = self._momentum.setdefault(id(parameter), torch.zeros_like(parameter))
            velocity.mul_(momentum).add_(difference)
            difference = difference.add(velocity, alpha=momentum)
        parameter.add_(difference, alpha=-self._outer.learning_rate)

    def state(self) -> dict[str, torch.Tensor]:
        """All that goes on beside parameters and the optimizer's own state, by name."""
        state = {PREFIX + "made": torch.tensor(self._made)}
        for number, parameter in enumerate(self._optimized.own()):
            state[f"{PREFIX}common.{number}"] = self._common[id(parameter)].clone()
            if id(parameter) in self._momentum:
                state[f"{PREFIX}momentum.{number}"] = self._momentum[id(parameter)].clone()
        return state

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave.

        Raises:
            ConfigError: it belongs to other parameters, or to an optimizer without local steps.
        """
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
            self._common[id(parameter)].copy_(state[f"{PREFIX}common.{number}"])
            if (momentum := state.get(f"{PREFIX}momentum.{number}")) is not None:
                self._momentum[id(parameter)] = momentum.to(parameter.device, copy=True)
