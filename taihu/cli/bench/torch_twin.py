"""The same network in PyTorch, with the same parameters, to be measured beside the engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from taihu.core.base.errors import ConfigError
from taihu.worker.bench.engine import LEARNING_RATE, MOMENTUM, EngineStep, example_batch
from taihu.worker.engine import (
    Array,
    AvgPool2d,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Model,
    PaddedShortcut,
    ReLU,
    Residual,
    Sequential,
)

TorchLayout = Literal["nchw", "channels_last"]


def import_torch() -> Any:
    """PyTorch.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ConfigError("--against torch: torch is not installed; pip install taihu[torch]") from None


def torch_twin(model: Model) -> Any:
    """A module of the same layers, with a copy of the parameters of a bound model.

    Raises:
        ConfigError: torch is not installed, or has no such layer.
    """
    return _Twin(import_torch()).chain(model)


class TorchStep:
    """The step of `EngineStep` in eager PyTorch on the CPU.

    Args:
        name: of the model, as in a job file.
        batch: images in a step.
        threads: of PyTorch.
        layout: of activations and weights.
    """

    def __init__(self, name: str, batch: int, threads: int, layout: TorchLayout) -> None:
        torch = self._torch = import_torch()
        torch.set_num_threads(threads)
        kind = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        self._module = _Twin(torch).chain(EngineStep(name, batch, 1).model).to(memory_format=kind)
        images, labels = example_batch(name, batch)
        self._images = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).contiguous(memory_format=kind)
        self._labels = torch.from_numpy(labels)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self._loss = torch.nn.CrossEntropyLoss()

    def step(self) -> float:
        """Train on the batch; returns the loss before the update."""
        self._optimizer.zero_grad()
        loss = self._loss(self._module(self._images), self._labels)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())


class _Twin:
    """Builds modules from layers, in forward order; the shape behind each is kept for `Flatten`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._channels = 0
        self._flattened = False
        self._makers: dict[type[Layer], Callable[[Any], Any]] = {
            Sequential: self._sequential,
            Residual: self._residual,
            PaddedShortcut: self._shortcut,
            Conv2d: self._convolution,
            Concat: self._concat,
            BatchNorm: self._norm,
            LocalResponseNorm: lambda layer: torch.nn.LocalResponseNorm(*layer.response),
            ReLU: lambda _: torch.nn.ReLU(),
            MaxPool2d: self._max_pool,
            AvgPool2d: self._avg_pool,
            GlobalAvgPool: self._global_pool,
            Flatten: self._flatten,
            Linear: self._linear,
        }

    def chain(self, model: Model) -> Any:
        return self._torch.nn.Sequential(*(self._make(layer) for layer in model.chain))

    def _make(self, layer: Layer) -> Any:
        maker = self._makers.get(type(layer))
        if maker is None:
            known = ", ".join(sorted(kind.__name__ for kind in self._makers))
            without = " (its masks are random)" if isinstance(layer, Dropout) else ""
            raise ConfigError(
                f"--against torch: expected a model of {known}, seen {type(layer).__name__}{without}; "
                "choose another model or --against none"
            )
        return maker(layer)

    def _sequential(self, layer: Sequential) -> Any:
        return self._torch.nn.Sequential(*(self._make(child) for child in layer.children))

    def _residual(self, layer: Residual) -> Any:
        body, *shortcut = (self._make(child) for child in layer.children)
        return _module(self._torch, [body, *shortcut], lambda x: body(x) + (shortcut[0](x) if shortcut else x))

    def _concat(self, layer: Concat) -> Any:
        cat, branches = self._torch.cat, [self._make(child) for child in layer.children]
        self._channels = sum(layer.channels)
        return _module(self._torch, branches, lambda x: cat([branch(x) for branch in branches], dim=1))

    def _shortcut(self, layer: PaddedShortcut) -> Any:
        pad, stride, channels = self._torch.nn.functional.pad, layer.stride, layer.channels
        return _module(
            self._torch,
            [],
            lambda x: pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, channels - x.shape[1])),
        )

    def _convolution(self, layer: Conv2d) -> Any:
        weight, window = layer.parameters["weight"], layer.window
        module = self._torch.nn.Conv2d(
            weight.shape[2] * layer.groups,
            weight.shape[3],
            window.size,
            window.stride,
            window.padding,
            groups=layer.groups,
            bias="bias" in layer.parameters,
        )
        self._channels = weight.shape[3]
        return self._filled(module, weight=weight.transpose(3, 2, 0, 1), bias=layer.parameters.get("bias"))

    def _norm(self, layer: BatchNorm) -> Any:
        scale, shift = layer.parameters["scale"], layer.parameters["shift"]
        return self._filled(self._torch.nn.BatchNorm2d(len(scale)), weight=scale, bias=shift)

    def _max_pool(self, layer: MaxPool2d) -> Any:
        return self._torch.nn.MaxPool2d(*layer.window, ceil_mode=layer.ceil_mode)

    def _avg_pool(self, layer: AvgPool2d) -> Any:
        return self._torch.nn.AvgPool2d(*layer.window, ceil_mode=layer.ceil_mode, count_include_pad=False)

    def _global_pool(self, layer: GlobalAvgPool) -> Any:
        return self._torch.nn.Sequential(self._torch.nn.AdaptiveAvgPool2d(1), self._torch.nn.Flatten())

    def _flatten(self, layer: Flatten) -> Any:
        self._flattened = True
        return self._torch.nn.Flatten()

    def _linear(self, layer: Linear) -> Any:
        weight = layer.parameters["weight"]
        if self._flattened:
            # The engine flattens (H, W, C), PyTorch (C, H, W).
            pixels = weight.reshape(-1, self._channels, weight.shape[1])
            weight = pixels.transpose(1, 0, 2).reshape(weight.shape)
            self._flattened = False
        module = self._torch.nn.Linear(*weight.shape, bias="bias" in layer.parameters)
        return self._filled(module, weight=weight.T, bias=layer.parameters.get("bias"))

    def _filled(self, module: Any, **values: Array | None) -> Any:
        with self._torch.no_grad():
            for name, value in values.items():
                if value is not None:
                    getattr(module, name).copy_(self._torch.from_numpy(np.ascontiguousarray(value)))
        return module


def _module(torch: Any, children: list[Any], forward: Callable[[Any], Any]) -> Any:
    """A module with the given forward; its children's parameters are its own."""

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(children)

        def forward(self, x: Any) -> Any:
            return forward(x)

    return Wrapped()
