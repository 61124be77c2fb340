"""Gradients of PyTorch's parameters as views of an arena, in the order of its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import repeat
from operator import is_
from sys import getrefcount
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch.nn.parameter import UninitializedTensorMixin

from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.torch.gradients.sealed import SealedGradient, sealed_like
from taihu.torch.gradients.spread import is_spread, was_spread
from taihu.torch.gradients.staging import Staging, pin, staging_of

_log = structlog.get_logger()
_CAN_LET_GO: Final = hasattr(torch.UntypedStorage, "_swap_data_ptr_") and hasattr(torch._C, "_storage_Use_Count")


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
    check_parameters(named, model)
    return named


def check_parameters(named: Iterable[tuple[str, torch.nn.Parameter]], model: torch.nn.Module | None) -> None:
    """Refuse parameters whose gradients cannot be exchanged.

    Raises:
        ConfigError: one has no values yet, or will have a sparse gradient.
    """
    names = {}
    for name, parameter in named:
        names[id(parameter)] = name
        if isinstance(parameter, UninitializedTensorMixin) or parameter.device.type == "meta":
            raise ConfigError(
                f"{name} ({type(parameter).__name__} on {parameter.device}) has no values yet: run a batch through "
                "the model, or load its state, before the optimizer and DistributedOptimizer are made"
            )
        if parameter.layout != torch.strided:
            raise ConfigError(f"{name} is {parameter.layout}, and dense parameters are exchanged: make it dense")
    for module in () if model is None else model.modules():
        weight = getattr(module, "weight", None)
        if _is_sparse(module) and id(weight) in names:
            raise ConfigError(
                f"{names[id(weight)]} is of {type(module).__name__}(sparse=True), whose gradients are sparse, and "
                "dense ones are exchanged: make it with sparse=False"
            )


def exchangeable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters of a model whose gradients can be exchanged, each once."""
    weights = {id(getattr(module, "weight", None)) for module in model.modules() if _is_sparse(module)}
    return [
        p
        for p in model.parameters()
        if id(p) not in weights and _has_values(p) and not is_spread(p) and not was_spread(p)
    ]


def _has_values(parameter: torch.Tensor) -> bool:
    """Whether a parameter has dense values."""
    is_made = not isinstance(parameter, UninitializedTensorMixin) and parameter.device.type != "meta"
    return is_made and parameter.layout is torch.strided


def _is_sparse(module: torch.nn.Module) -> bool:
    """Whether the gradient of a module's weight is sparse."""
    return getattr(module, "sparse", False) is True


def layer_of(name: str, parameter: torch.Tensor, kind: int = 0) -> LayerSpec:
    """The layer of a parameter: its gradient, of a complex one as real and imaginary parts."""
    return LayerSpec(name, (TensorSpec("gradient", _real_shape(parameter) or (1,)),), kind=kind)


def _real_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def layout_of(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Layout:
    """A layer for each parameter, the last one first: backward begins at the output, until its order is known."""
    return Layout(tuple(layer_of(name, parameter) for name, parameter in reversed(list(named))))


def views_of(
    layout: Layout, parameters: Sequence[torch.nn.Parameter], arena: NDArray[np.float32]
) -> list[torch.Tensor]:
    """The part of each parameter in an arena, shape (layout.elements,), in its own shape."""
    values = torch.from_numpy(arena)
    return [
        values[start:stop].view(parameter.shape)
        for start, stop, parameter in zip(layout.offsets, layout.offsets[1:], parameters, strict=False)
    ]


class _View:
    """The part of one parameter in an arena, as memory of its own that a script may hold on to.

    Args:
        values: shape (n,), a part of the arena.
        dtype: of these values, which lie there as NumPy has them.
        shape: of the gradient as real numbers.
    """

    def __init__(self, values: NDArray[Any], dtype: torch.dtype, shape: Sequence[int]) -> None:
        self.tensor: Any = torch.from_numpy(values).view(dtype).view(shape)
        self._storage = self.tensor.untyped_storage()
        # Of its memory, and how many tensors have that where nobody else does.
        self.handle = self._storage._cdata if _CAN_LET_GO else 0
        self.uses = _uses(self.handle)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else holds the tensor, which is no parameter's gradient, or another one of its memory."""
        return getrefcount(self.tensor) == _USUAL_REFERENCES and _uses(self.handle) == self.uses

    def let_go(self) -> None:
        """Leave the values to whoever else holds the tensor, or its memory; this has another then."""
        fresh = self.tensor.detach().clone()
        self._storage._swap_data_ptr_(fresh.untyped_storage())
        self.tensor, self._storage = fresh, fresh.untyped_storage()
        self.handle = self._storage._cdata if _CAN_LET_GO else 0
        self.uses = _uses(self.handle)


_uses: Final[Callable[[Any], int]] = torch._C._storage_Use_Count if _CAN_LET_GO else lambda _: 0


def _usual_references() -> int:
    holder = SimpleNamespace(tensor=torch.empty(0))
    return getrefcount(holder.tensor)


_USUAL_REFERENCES: Final = _usual_references()


class _Span:
    """Neighbouring parameters that become views of the arena together: Python looks at all of them by a few calls.

    Args:
        parameters: of the arena's type, on the CPU.
        views: of each.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], views: Sequence[_View]) -> None:
        self._parameters, self._views = parameters, views
        # A list holds each once more.
        self._references = [_USUAL_REFERENCES + 1] * len(views)

    def bind(self) -> bool:
        """Copy all gradients to the arena, and have them lie there; False where each is to be looked at by itself."""
        tensors = [view.tensor for view in self._views]
        gradients = [parameter.grad for parameter in self._parameters]
        if any(map(is_, gradients, tensors)) or any(map(is_, gradients, repeat(None))):
            return all(map(is_, gradients, tensors))
        uses = [*map(_uses, [view.handle for view in self._views])]
        is_alone = [*map(getrefcount, tensors)] == self._references and uses == [view.uses for view in self._views]
        if not is_alone or any(gradient.layout is not torch.strided for gradient in gradients):
            return False
        with nullcontext() if not torch.is_grad_enabled() else torch.no_grad():
            torch._foreach_copy_(tensors, gradients)
        for parameter, tensor in zip(self._parameters, tensors, strict=True):
            parameter.grad = tensor
        return True


class GradientArena:
    """The gradients of parameters in one array, shape (elements,), of the type that travels.

    Those of parameters of this type on the CPU become views of it in backward: what autograd has made is copied
    there, and what comes back is where the optimizer looks. Those on a CUDA device are copied there and back beside
    what the device computes (see `staging`), all others at once. A gradient that the script has kept, and that is no
    parameter's any more, stays as it is.

    Args:
        layout: of the parameters.
        parameters: in the layout's order.
        arena: shape (layout.elements,), writable; kept, and pinned until `close` where a device copies.
        dtype: of its values, which are codes (uint16) of 16-bit types.
        keeps: whether the arena has memory between steps; if not, all gradients are copied there.
        seals: whether nothing comes back, so that a gradient is sealed when it is in the arena.
        stage: what copies the gradients of a device, None where the thread that calls does.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        arena: NDArray[Any],
        *,
        dtype: torch.dtype = torch.float32,
        keeps: bool = True,
        seals: bool = False,
        stage: Callable[[torch.device], Staging | None] = staging_of,
    ) -> None:
        self.parameters = list(parameters)
        self._names = [layer.name for layer in layout.layers]
        bounds = zip(layout.offsets, layout.offsets[1:], parameters, strict=False)
        self._views = [_View(arena[start:stop], dtype, _real_shape(p)) for start, stop, p in bounds]
        self._sealed = [sealed_like(parameter) for parameter in parameters] if seals else []
        stagings = {device: stage(device) for device in {p.device for p in parameters}}
        self._staged = [stagings[p.device] for p in parameters]
        self._stagings = [each for each in stagings.values() if each is not None]
        self._is_bound = [
            keeps and _CAN_LET_GO and staging is None and p.dtype == dtype and p.device.type == "cpu"
            for staging, p in zip(self._staged, parameters, strict=True)
        ]
        is_cuda = any(device.type == "cuda" for device in stagings)
        self._unpin = pin(torch.from_numpy(arena)) if is_cuda else lambda: None
        self._is_complex = [p.is_complex() for p in parameters]
        self._spans: dict[tuple[int, int], _Span] = {}
        bound, staged = sum(self._is_bound), sum(staging is not None for staging in self._staged)
        _log.info("gradients", views=bound, staged=staged, copied=len(parameters) - bound - staged)

    def close(self) -> None:
        """Nothing is copied any more."""
        self._settle()
        self._unpin()

    def bind_one(self, index: int) -> None:
        """Have backward add to the arena, or to memory of its own, unless parameter `index` has a gradient."""
        parameter = self.parameters[index]
        if isinstance(parameter.grad, SealedGradient):
            parameter.grad = None
        if parameter.grad is None and self._is_bound[index]:
            view = self._views[index].tensor
            view.zero_()
            parameter.grad = view

    @property
    def is_copied_by_devices(self) -> bool:
        """Whether a gradient may come to the arena later than it is taken."""
        return bool(self._stagings)

    def take(self, index: int) -> None:
        """The gradient of parameter `index` is complete: a device that has it may copy it to the arena from now on.

        `is_there` tells when it has; all others are brought by `gather`.
        """
        staging = self._staged[index]
        if staging is None or self._sealed:
            return
        gradient = self.parameters[index].grad
        if gradient is None:
            self._settle()
            self._views[index].tensor.zero_()
        else:
            staging.take(index, self._views[index].tensor, self._values_of(index, gradient))

    def gather(self, first: int, last: int) -> None:
        """Bring gradients `first` to `last`, all complete, to the arena, if no device copies them."""
        if self._sealed:
            self._seal(range(first, last + 1))
        elif (span := self._span(first, last)) is None or not span.bind():
            self._bind([index for index in range(first, last + 1) if self._staged[index] is None])

    def _span(self, first: int, last: int) -> _Span | None:
        span = self._spans.get((first, last))
        if span is None and all(self._is_bound[first : last + 1]):
            span = _Span(self.parameters[first : last + 1], self._views[first : last + 1])
            self._spans[first, last] = span
        return span

    def _bind(self, indices: Iterable[int]) -> None:
        """Copy gradients to the arena, each looked at by itself; they are views of it then if they can be."""
        targets, sources = [], []
        for index in indices:
            parameter, view = self.parameters[index], self._views[index]
            gradient = parameter.grad
            if gradient is view.tensor:
                continue
            if self._is_bound[index] and not view.is_alone:
                view.let_go()
            if gradient is None:
                self._settle()
                view.tensor.zero_()
                continue
            targets.append(view.tensor)
            sources.append(self._values_of(index, gradient))
            if self._is_bound[index]:
                parameter.grad = view.tensor
        _copy(targets, sources)

    def _seal(self, indices: Iterable[int]) -> None:
        """Bring gradients to the arena, from which they do not come back."""
        targets, sources = [], []
        for index in indices:
            parameter, view = self.parameters[index], self._views[index]
            gradient = parameter.grad
            if gradient is None or isinstance(gradient, SealedGradient):
                self._settle()
                view.tensor.zero_()
            elif gradient is not view.tensor:
                targets.append(view.tensor)
                sources.append(self._values_of(index, gradient))
            parameter.grad = self._sealed[index]
        _copy(targets, sources)

    def is_there(self, index: int) -> bool:
        """Whether the gradient of parameter `index`, which was taken, may be sent; returns at once."""
        staging = self._staged[index]
        return staging is None or staging.is_there(index)

    def wait(self, index: int) -> None:
        """Return when the gradient of parameter `index` may be sent."""
        staging = self._staged[index]
        if staging is not None:
            staging.wait(index)

    def give(self, indices: Iterable[int], is_brought: Callable[[int], bool] = lambda _: True) -> None:
        """The arena has what came back for parameters `indices`: have it in their gradients.

        One that has none, and that no worker has brought, goes on having none.
        """
        for index in indices:
            parameter, view = self.parameters[index], self._views[index].tensor
            gradient = parameter.grad
            if gradient is view or (gradient is None and not is_brought(index)):
                continue
            if self._is_bound[index]:
                parameter.grad = view
                continue
            if gradient is None:
                gradient = parameter.grad = torch.empty_like(parameter)
            if (staging := self._staged[index]) is None:
                _real(gradient).copy_(view)
            else:
                staging.give(_real(gradient), view)
        for staging in self._stagings:
            staging.given()

    def _values_of(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient whose values lie in memory, as real numbers.

        Raises:
            ConfigError: it is sparse.
        """
        if gradient.layout is not torch.strided:
            raise ConfigError(
                f"{self._names[index]} has a sparse gradient, and dense ones are exchanged: make its embedding with "
                "sparse=False"
            )
        if gradient.requires_grad:
            gradient = gradient.detach()
        return _real(gradient) if self._is_complex[index] else gradient

    def _settle(self) -> None:
        """Return when nothing of the last step is on its way out of the arena."""
        for staging in self._stagings:
            staging.settle()


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if targets:
        # In one call: Python takes longer than small copies do.
        torch._foreach_copy_(targets, sources)


def _real(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as real numbers: of a complex one its parts, in a last dimension of 2."""
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
