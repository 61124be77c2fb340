"""Gradients of PyTorch's parameters as views of an arena, in the order in which backward brings them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.errors import ConfigError
from taihu.layout import LayerSpec, Layout, TensorSpec
from taihu.torch.sealed import SealedGradient, sealed_like

__all__ = ["GradientArena", "layout_of", "trained", "views_of"]


def trained(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that the optimizer updates and backward reaches, with their names, in the model's order.

    Raises:
        ConfigError: the optimizer has one that the model does not have, or no parameter needs a gradient.
    """
    own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
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
    if not named:
        raise ConfigError("no parameter of the optimizer needs a gradient: there is nothing to exchange")
    return named


def layout_of(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Layout:
    """A layer for each parameter, the last one first: backward begins at the output."""
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

    Those of fp32 parameters on the CPU are views of it; all others are copied there, and back.

    Args:
        layout: of the parameters.
        parameters: in the layout's order.
        arena: shape (layout.elements,), fp32, writable; kept.
        keeps: whether the arena has memory between steps; if not, all gradients are copied there.
        seals: whether nothing comes back, so that a gradient is sealed when it is in the arena.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        arena: NDArray[np.float32],
        *,
        keeps: bool = True,
        seals: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self._views = views_of(layout, parameters, arena)
        self._is_bound = [keeps and p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters]
        self._sealed = [sealed_like(parameter) for parameter in parameters] if seals else []

    def bind(self) -> None:
        """Have backward add to the arena wherever a parameter has no gradient, as after `zero_grad`."""
        for index in range(len(self.parameters)):
            self.bind_one(index)

    def bind_one(self, index: int) -> None:
        """Have backward add to the arena, or to memory of its own, unless parameter `index` has a gradient."""
        parameter = self.parameters[index]
        if isinstance(parameter.grad, SealedGradient):
            parameter.grad = None
        if parameter.grad is None and self._is_bound[index]:
            self._views[index].zero_()
            parameter.grad = self._views[index]

    def take(self, index: int) -> None:
        """The gradient of parameter `index` is complete: have it in the arena."""
        parameter, view = self.parameters[index], self._views[index]
        gradient = parameter.grad
        if gradient is None or isinstance(gradient, SealedGradient):
            view.zero_()
        elif not _is(gradient, view):
            view.copy_(gradient.detach())
        if self._sealed:
            parameter.grad = self._sealed[index]
        elif self._is_bound[index]:
            parameter.grad = view

    def forget(self) -> None:
        """No parameter has a gradient; `take` puts zeros in their places."""
        for parameter in self.parameters:
            parameter.grad = None

    def give(self, index: int) -> None:
        """The arena has what came back for parameter `index`: have it in its gradient."""
        parameter = self.parameters[index]
        if self._sealed or self._is_bound[index]:
            return
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(self._views[index])


def _is(tensor: Any, view: Any) -> bool:
    """Whether a tensor lies where the view does, as it does."""
    return bool(tensor.data_ptr() == view.data_ptr() and tensor.is_contiguous() and tensor.dtype == view.dtype)
