"""A user's optimizer whose gradients are the means of all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from typing_extensions import override

from taihu.torch.gradients import layout_of, trained
from taihu.torch.steps import BackwardSteps
from taihu.torch.world import World

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(torch.optim.Optimizer):
    """Exchanges gradients during backward; behind it they are the means of all workers, and `step` is the user's.

    Schedulers, GradScaler and clipping take it as the optimizer that it was made of.

    Args:
        optimizer: the user's own, any of PyTorch's or of theirs.
        model: whose parameters and buffers worker 0 brings to all, and whose forwards are watched; without one the
            parameters of the optimizer.
        world: the workers.
    """

    # Everything but backward is the affair of the optimizer inside: none of the base class's state is made.
    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, world: World) -> None:
        self.optimizer = optimizer
        self._steps: BackwardSteps | None = None
        if world.is_alone:
            return
        named = trained(optimizer, model)
        parameters = [parameter for _, parameter in reversed(named)]
        brings = parameters if model is None else [*model.parameters(), *model.buffers()]
        steps = self._steps = world.train(layout_of(named), parameters, brings)
        if model is not None:
            model.register_forward_pre_hook(lambda *_: steps.begins() if torch.is_grad_enabled() else None)
            model.register_forward_hook(lambda *_: steps.forwarded())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer inside."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    @override
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update by the mean gradients, as the optimizer inside does."""
        loss: float | None = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        return loss

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad(set_to_none)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer inside, which can load it, too."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state."""
        self.optimizer.load_state_dict(state_dict)

    def synchronize(self) -> None:
        """Return when all gradients are the means of all workers: they are, as soon as backward has returned."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """During the block gradients are added up here; the first backward behind it exchanges the sum."""
        if self._steps is None:
            yield
            return
        former, self._steps.is_synced = self._steps.is_synced, False
        try:
            yield
        finally:
            self._steps.is_synced = former
