"""Gradients of PyTorch's parameters as views of an arena, in the order of its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from taihu.errors import ConfigError
from taihu.layout import LayerSpec, Layout, TensorSpec
from taihu.torch.sealed import SealedGradient, sealed_like
from taihu.torch.spread import is_spread, was_spread
from taihu.torch.staging import Staging, pin, staging_of

__all__ = ["GradientArena", "layout_of", "trained", "views_of"]

_log = structlog.get_logger()


def trained(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that the optimizer updates and backward reaches, with their names, in the model's order.

    Columns of spread layers are this worker's own: they are left out.

    Raises:
        ConfigError: the optimizer has one that the model does not have, or no parameter needs a gradient.
    """
    everything = [p for group in optimizer.param_groups for p in group["params"]]
    if any(map(was_spread, everything)):
        raise ConfigError(
            "the optimizer was made before shard_linear, of parameters that the model has no more; make it afterwards"
        )
    own = [p for p in everything if p.requires_grad and not is_spread(p)]
    if model is None:
        named = [(f"parameter {index}", parameter) for index, parameter in enumerate(own)]
    else:
        wanted = {id(parameter) for parameter in own}
        named = [(name, p) for name, p in model.named_parameters() if id(p) in wanted]
        if len(named) < len(wanted):
            raise ConfigError(
                f"the optimizer has {len(wanted)} parameters that need gradients, and the model has {len(named)} of "
                "them: give the model that the optimizer was made for, or none"
            )
    if not named and any(map(is_spread, everything)):
        raise ConfigError(
            "every parameter of the optimizer is spread, and there is nothing to exchange: leave a layer out of "
            "shard_linear"
        )
    if not named:
        raise ConfigError("no parameter of the optimizer needs a gradient: there is nothing to exchange")
    return named


def layout_of(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Layout:
    """A layer for each parameter, the last one first: backward begins at the output, until its order is known."""
    return Layout(
        tuple(
            LayerSpec(name, (TensorSpec("gradient", tuple(parameter.shape) or (1,)),))
            for name, parameter in reversed(list(named))
        )
    )


def views_of(
    layout: Layout, parameters: Sequence[torch.nn.Parameter], arena: NDArray[np.float32]
) -> list[torch.Tensor]:
    """The part of each parameter in an arena, shape (layout.elements,), in its own shape."""
    values = torch.from_numpy(arena)
    return [
        values[start:stop].view(parameter.shape)
        for start, stop, parameter in zip(layout.offsets, layout.offsets[1:], parameters, strict=False)
    ]


class GradientArena:
    """The gradients of parameters in one array, shape (elements,), fp32.

    Those of fp32 parameters on the CPU are views of it. Those on a CUDA device are copied there and back beside what
    the device computes (`taihu.torch.staging`), all others at once.

    Args:
        layout: of the parameters.
        parameters: in the layout's order.
        arena: shape (layout.elements,), fp32, writable; kept, and pinned until `close` where a device copies.
        keeps: whether the arena has memory between steps; if not, all gradients are copied there.
        seals: whether nothing comes back, so that a gradient is sealed when it is in the arena.
        stage: what copies the gradients of a device, None where the thread that calls does.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        arena: NDArray[np.float32],
        *,
        keeps: bool = True,
        seals: bool = False,
        stage: Callable[[torch.device], Staging | None] = staging_of,
    ) -> None:
        self.parameters = list(parameters)
        self._views = views_of(layout, parameters, arena)
        self._sealed = [sealed_like(parameter) for parameter in parameters] if seals else []
        stagings = {device: stage(device) for device in {p.device for p in parameters}}
        self._staged = [stagings[p.device] for p in parameters]
        self._stagings = [each for each in stagings.values() if each is not None]
        self._is_bound = [
            keeps and staging is None and p.dtype == torch.float32 and p.device.type == "cpu"
            for staging, p in zip(self._staged, parameters, strict=True)
        ]
        is_cuda = any(device.type == "cuda" for device in stagings)
        self._unpin = pin(torch.from_numpy(arena)) if is_cuda else lambda: None
        bound, staged = sum(self._is_bound), sum(staging is not None for staging in self._staged)
        _log.info("gradients", views=bound, staged=staged, copied=len(parameters) - bound - staged)

    def close(self) -> None:
        """Nothing is copied any more."""
        self._settle()
        self._unpin()

    def bind(self, indices: Iterable[int]) -> None:
        """Have backward add to the arena where parameters `indices` have no gradient, as after `zero_grad`."""
        bound = []
        for index in indices:
            parameter = self.parameters[index]
            if parameter.grad is None and self._is_bound[index]:
                parameter.grad = self._views[index]
                bound.append(self._views[index])
        if bound:
            # In one call: Python takes longer than the zeros do.
            torch._foreach_zero_(bound)

    def bind_one(self, index: int) -> None:
        """Have backward add to the arena, or to memory of its own, unless parameter `index` has a gradient."""
        parameter = self.parameters[index]
        if isinstance(parameter.grad, SealedGradient):
            parameter.grad = None
        if parameter.grad is None and self._is_bound[index]:
            self._views[index].zero_()
            parameter.grad = self._views[index]

    def take(self, index: int) -> None:
        """The gradient of parameter `index` is complete: bring it to the arena, where `is_there` tells of it."""
        parameter, view = self.parameters[index], self._views[index]
        gradient = parameter.grad
        if gradient is view and not self._sealed:
            return
        staging = self._staged[index]
        if gradient is None or isinstance(gradient, SealedGradient):
            self._settle()
            view.zero_()
        elif staging is not None:
            staging.take(index, view, gradient.detach())
        elif not _is(gradient, view):
            view.copy_(gradient.detach())
        if self._sealed:
            parameter.grad = self._sealed[index]
        elif self._is_bound[index]:
            parameter.grad = view

    def is_there(self, index: int) -> bool:
        """Whether the gradient of parameter `index` may be sent; returns at once."""
        staging = self._staged[index]
        return staging is None or staging.is_there(index)

    def wait(self, index: int) -> None:
        """Return when the gradient of parameter `index` may be sent."""
        staging = self._staged[index]
        if staging is not None:
            staging.wait(index)

    def give(self, indices: Iterable[int]) -> None:
        """The arena has what came back for parameters `indices`: have it in their gradients."""
        for index in indices:
            parameter, view = self.parameters[index], self._views[index]
            if self._is_bound[index]:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            if (staging := self._staged[index]) is None:
                parameter.grad.copy_(view)
            else:
                staging.give(parameter.grad, view)
        for staging in self._stagings:
            staging.given()

    def _settle(self) -> None:
        """Return when nothing of the last step is on its way out of the arena."""
        for staging in self._stagings:
            staging.settle()


def _is(tensor: Any, view: Any) -> bool:
    """Whether a tensor lies where the view does, as it does."""
    return bool(tensor.data_ptr() == view.data_ptr() and tensor.is_contiguous() and tensor.dtype == view.dtype)
