"""Linear layers of a model whose outputs are spread over the workers, in the place of whole ones (docs/fc.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from typing_extensions import override

from taihu.core.base.errors import ConfigError, DataError
from taihu.core.planner.fc_mode import FcJob, FcLayer, choose_fc
from taihu.core.wire.base.clock import SystemClock
from taihu.torch.gradients.spread import Call, Product, Spread, mark
from taihu.torch.world import World
from taihu.worker.fc.probe import agree_on_links
from taihu.worker.fc.shards import split_columns

Choice = Literal["shard", "auto"]

AT_LEAST = 1 << 20
"""Weights of a layer that is spread with its model."""
# The rows of a layer are told of before they are gathered: five transfers, where the planner counts four.
_TRANSFERS = 5 / 4


class ShardedLinear(torch.nn.Linear):
    """A torch.nn.Linear of which this worker has outputs [columns[rank], columns[rank + 1]) alone.

    All workers call `forward`, backward and `state_dict()` together, each with its own examples. `in_features` and
    `out_features` are the whole layer's, as are its entries of a `state_dict()`.
    """

    _columns: tuple[int, ...]
    _spread: Spread
    _layer: int

    @property
    def columns(self) -> tuple[int, ...]:
        """The bounds of all workers' outputs, `out_features` at the end."""
        return self._columns

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The outputs (..., N) of the own examples (..., K), of which each worker has any number.

        Raises:
            RunError: another worker calls something else.
            ConfigError: the layer has been moved from the CPU, or to another type than fp32 or fp64.
            DataError: the examples have another number of features.
        """
        name = self._spread.names[self._layer]
        _check(self, name)
        if input.shape[-1] != self.in_features:
            raise DataError(f"{name}: expected examples (..., {self.in_features}), seen {tuple(input.shape)}")
        x = input.to(self.weight.dtype).reshape(-1, self.in_features)
        call = Call.EVALUATION
        if torch.is_grad_enabled():
            call = Call.FORWARD if x.requires_grad else Call.FIRST_FORWARD
        y = Product.apply(x, self.weight, self.bias, self._spread, self._layer, self._columns, call)
        return y.view(*input.shape[:-1], self.out_features)

    @override
    def extra_repr(self) -> str:
        """Sizes, and the own outputs."""
        own = self._own
        return f"{super().extra_repr()}, outputs {own.start} to {own.stop - 1} here"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ConfigError("a layer that is spread over workers cannot be pickled: save the model's state_dict()")

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedLinear:
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__.update({name: deepcopy(value, memo) for name, value in self.__dict__.items()})
        for parameter in copied.parameters():
            mark(parameter, is_own=True)
        return copied

    @property
    def _own(self) -> slice:
        return slice(self._columns[self._spread.rank], self._columns[self._spread.rank + 1])

    @override
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._spread.begin(Call.STATE, self._layer, 0)
        for name, own in self.named_parameters(recurse=False):
            destination[prefix + name] = self._spread.whole(own, self._columns)

    @override
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        *_, error_messages = rest
        own = dict(state_dict)
        for name, parameter in self.named_parameters(recurse=False):
            whole = own.get(prefix + name)
            expected = (self.out_features, *parameter.shape[1:])
            if whole is None:
                continue
            if tuple(whole.shape) != expected:
                seen = tuple(whole.shape)
                error_messages.append(f"{prefix}{name}: expected the whole layer's shape {expected}, seen {seen}")
                own[prefix + name] = parameter.detach()
            else:
                own[prefix + name] = whole[self._own].clone()
        super()._load_from_state_dict(own, prefix, *rest)
        for parameter in self.parameters(recurse=False):  # which may be others, by `assign`
            mark(parameter, is_own=True)


def shard_linear(
    world: World, module: torch.nn.Module, choice: Choice, *, batch: int | None, at_least: int
) -> tuple[str, ...]:
    """Spread layers, see `taihu.torch.shard_linear`."""
    if choice not in get_args(Choice):
        raise ConfigError(f"shard_linear {choice!r}: expected one of {', '.join(get_args(Choice))}")
    if choice == "auto" and batch is None:
        raise ConfigError("shard_linear 'auto': expected batch, the examples of a worker in a step, seen none")
    if world.is_alone:
        return ()
    is_one = isinstance(module, torch.nn.Linear)
    layers = _candidates(module, at_least)
    if choice == "shard" and not layers:
        raise ConfigError(
            f"shard_linear: {type(module).__name__} has no torch.nn.Linear of {at_least:,} weights or more that is "
            "whole and alone has its parameters; lower at_least"
        )
    spread = world.spread()
    if choice == "auto":
        assert batch is not None  # noqa: S101
        layers = _faster(world, layers, batch)
    elif not is_one:
        layers = {name: layer for name, layer in layers.items() if layer.out_features >= world.size}
    for name, layer in layers.items():
        _check(layer, name)
        columns = split_columns(name, layer.out_features, world.size)
        world.bring(list(layer.parameters()))
        _turn(layer, name, columns, spread)
    return tuple(layers)


def _candidates(module: torch.nn.Module, at_least: int) -> dict[str, torch.nn.Linear]:
    """The layers by name that can be spread: others use the parameters of a derived class past its forward."""
    if type(module) is torch.nn.Linear:
        return {f"Linear({module.in_features}, {module.out_features})": module}
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    return {
        name: each
        for name, each in module.named_modules()
        if type(each) is torch.nn.Linear
        and each.weight.numel() >= at_least
        and all(uses[id(parameter)] == 1 for parameter in each.parameters())
    }


def _faster(world: World, layers: Mapping[str, torch.nn.Linear], batch: int) -> dict[str, torch.nn.Linear]:
    """Those that the planner spreads, each on its own: nothing is known of what lies between them."""
    links = agree_on_links(world.meet(), world.job.servers, SystemClock())
    links = replace(links, transfer_seconds=links.transfer_seconds * _TRANSFERS)
    job = FcJob(batch, world.size, world.job.servers)
    known = {name: FcLayer(name, layer.in_features, layer.out_features) for name, layer in layers.items()}
    return {name: layers[name] for name, each in known.items() if choose_fc([each], job, links)[0].choice == "shard"}


def _check(layer: torch.nn.Linear, name: str) -> None:
    weight = layer.weight
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
        raise ConfigError(
            f"{name}: expected fp32 or fp64 weights on the CPU, seen {weight.dtype} on {weight.device}; leave the "
            "layer to the exchange of gradients"
        )


def _turn(layer: torch.nn.Linear, name: str, columns: tuple[int, ...], spread: Spread) -> None:
    """Have the layer be this worker's columns of itself: it stays the same object, wherever the model has it."""
    own = slice(columns[spread.rank], columns[spread.rank + 1])
    for part, whole in list(layer.named_parameters()):
        mark(whole, is_own=False)
        columns_here = torch.nn.Parameter(whole.detach()[own].clone(), whole.requires_grad)
        mark(columns_here, is_own=True)
        setattr(layer, part, columns_here)
    layer.__class__ = ShardedLinear
    layer._columns, layer._spread, layer._layer = columns, spread, len(spread.names)
    spread.names.append(name)
    # PyTorch's fused ways past the forwards of a module's parts are closed where one of them has a hook.
    layer.register_forward_pre_hook(_nothing)


def _nothing(*_: Any) -> None:
    """The inputs stay as they are."""
