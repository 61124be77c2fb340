"""A user's optimizer whose gradients are the means of all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from typing_extensions import override

from taihu.errors import ConfigError
from taihu.torch.gradients import layout_of, trained
from taihu.torch.steps import BackwardSteps
from taihu.torch.world import World

__all__ = ["DistributedOptimizer"]

_OURS: Final = "taihu."


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
        self._world = world
        self._brings: list[torch.Tensor] = []
        self._steps: BackwardSteps | None = None
        if world.is_alone:
            return
        named = trained(optimizer, model)
        parameters = [parameter for _, parameter in reversed(named)]
        self._brings = parameters if model is None else [*model.parameters(), *model.buffers()]
        steps = self._steps = world.train(layout_of(named), parameters, self._brings)
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
        """The state of the optimizer inside, which can load it, too; with what compression has held back here.

        That differs from worker to worker: each saves and loads its own.
        """
        state: dict[str, Any] = self.optimizer.state_dict()
        compression = None if self._steps is None else self._steps.compression
        own = {} if compression is None else compression.arrays()
        return {**state, **{_OURS + name: torch.from_numpy(array.copy()) for name, array in own.items()}}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; what it does not have of compression stays as it is.

        Raises:
            ConfigError: what was held back belongs to other parameters.
        """
        own = {name.removeprefix(_OURS): each for name, each in state_dict.items() if name.startswith(_OURS)}
        compression = None if self._steps is None else self._steps.compression
        if compression is not None and own:
            arrays = {name: each.numpy() for name, each in own.items()}
            seen, expected = arrays["residual"].size, compression.residual.size
            if seen != expected:
                raise ConfigError(
                    f"the state holds back {seen:,} values, expected {expected:,}: load the state of a worker that "
                    "trains the same parameters"
                )
            compression.resume(arrays)
        self.optimizer.load_state_dict(
            {name: each for name, each in state_dict.items() if not name.startswith(_OURS)}
        )

    def synchronize(self) -> None:
        """Return when all gradients are the means of all workers: they are, as soon as backward has returned."""

    @contextmanager
    def join(self) -> Iterator[None]:
        """In the block workers may have different numbers of backwards, as where batches do not come out even.

        Who has done its own takes part in those of the others, with gradients of zeros, and makes their updates. At
        the end of the block all have the parameters of the last of them. Means are those of all workers all the same.

        Raises:
            ConfigError: layers are spread over the workers.
        """
        if self._steps is None:
            yield
            return
        if self._world.spreads is not None:
            raise ConfigError(
                "join(): a forward of layers that shard_linear has spread needs all workers; give each as many "
                "batches, of any sizes"
            )
        self._steps.is_joined = True
        try:
            yield
            self._world.bring(self._brings, self._steps.follow(self._update))
        finally:
            self._steps.is_joined = False

    def _update(self) -> None:
        self.optimizer.step()

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
