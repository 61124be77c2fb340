"""The set of parameters that is exchanged, and whether it is still what the optimizers train: no network."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, Final

import numpy as np
import torch
from crc32c import crc32c
from numpy.typing import NDArray

from taihu.core.model.layout import LayerSpec, Layout
from taihu.torch.gradients.gradients import exchangeable, layer_of
from taihu.torch.gradients.spread import is_spread

_DIGEST_BYTES: Final = 6
_KNOWN: Final = 16
_SHOWN: Final = 4
_facts_of = attrgetter("requires_grad", "dtype", "shape", "device")


class Optimized:
    """A script's optimizer whose parameters are exchanged, while it lives; columns of spread layers are left out.

    Parameters of the model that no optimizer has may be exchanged with its own: they get means, as clipping by the
    norm of all wants, and nobody updates them.

    Args:
        optimizer: is not kept alive.
        model: gives parameters their names; it is not kept alive.
        has_others: whether it may have such others.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, *, has_others: bool = False
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._model = None if model is None else weakref.ref(model)
        self._has_others = has_others and model is not None
        # All that its groups have, of these the exchanged ones, and these with others of the model: lists that are
        # replaced where they change.
        self._all: list[torch.nn.Parameter] = []
        self._own: list[torch.nn.Parameter] = []
        self._known: list[torch.nn.Parameter] = []
        self._own_ids: frozenset[int] = frozenset()
        self._ids: frozenset[int] = frozenset()
        self.retired_by = ""
        """The name of a parameter that another optimizer has taken over; "" while none has."""
        self.was_exchanged = False
        """Whether an exchange has had its parameters."""

    def like_new(self) -> Optimized:
        """The same optimizer, of which nothing has been exchanged yet."""
        optimizer = self.optimizer
        assert optimizer is not None  # noqa: S101 - whoever asks has it
        return Optimized(optimizer, self.model, has_others=self._has_others)

    @property
    def is_retired(self) -> bool:
        """Whether another optimizer has taken parameters over: nobody steps by this one."""
        return bool(self.retired_by)

    @property
    def is_dead(self) -> bool:
        """Whether nobody can use its gradients: neither it nor its model is there, or another one has taken over."""
        return self.is_retired or (self._optimizer() is None and self.model is None)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer, while it is there."""
        return self._optimizer()

    @property
    def model(self) -> torch.nn.Module | None:
        """The model that it trains, if that is known."""
        return None if self._model is None else self._model()

    def groups(self) -> list[dict[str, Any]]:
        """Its parameter groups, empty where it is not there any more."""
        optimizer = self._optimizer()
        return [] if optimizer is None else optimizer.param_groups

    def own(self) -> list[torch.nn.Parameter]:
        """All that it updates now, or did at last; without columns of spread layers."""
        self.parameters()
        return self._own

    def parameters(self) -> list[torch.nn.Parameter]:
        """These and others that are exchanged with them. The same list while it is so."""
        optimizer = self._optimizer()
        if optimizer is not None:
            now = [p for group in optimizer.param_groups for p in group["params"]]
            if not _are_same(now, self._all):
                self._all, self._own = now, [p for p in now if not is_spread(p)]
                former, self._own_ids = self._own_ids, frozenset(map(id, self._own))
                self._know([p for p in self._known if id(p) not in former and id(p) not in self._own_ids])
        return self._known

    def find_others(self, taken: Container[int]) -> None:
        """Look for parameters of the model that no optimizer has: their identities are not in `taken`."""
        model = self.model
        if model is None or not self._has_others:
            return
        others = [p for p in exchangeable(model) if id(p) not in taken]
        if not _are_same(others, self._known[len(self._own) :]):
            self._know(others)

    def _know(self, others: Sequence[torch.nn.Parameter]) -> None:
        self._known = [*self._own, *others]
        self._ids = frozenset(map(id, self._known))

    def known(self) -> tuple[list[torch.nn.Parameter], frozenset[int]]:
        """The value of `parameters`, and the identities of all of it."""
        return self.parameters(), self._ids

    def own_ids(self) -> frozenset[int]:
        """The identities of what it updates."""
        self.parameters()
        return self._own_ids

    def named(self) -> list[tuple[str, torch.nn.Parameter]]:
        """These with their names, in the model's order; those that no model has come last."""
        own = {id(p): p for p in self.parameters()}
        model = self.model
        found = [] if model is None else [(name, p) for name, p in model.named_parameters() if id(p) in own]
        known = {id(p) for _, p in found}
        rest = [p for key, p in own.items() if key not in known]
        return found + [(f"parameter {len(found) + number}", p) for number, p in enumerate(rest)]


@dataclass(frozen=True)
class ExchangedSet:
    """Parameters that are exchanged; each has a number, its position, which begins at the output side.

    Attributes:
        layout: a layer for each.
        parameters: in its order.
        owners: of each the position of its optimizer in `optimized`.
        optimized: the optimizers.
        ids: the numbers of parameters by their identity.
    """

    layout: Layout
    parameters: tuple[torch.nn.Parameter, ...]
    owners: tuple[int, ...]
    optimized: tuple[Optimized, ...]
    ids: dict[int, int]

    @classmethod
    def of(cls, optimized: Sequence[Optimized], *, stays: Iterable[int] = (), shares_groups: bool) -> ExchangedSet:
        """Those that need a gradient, or whose identities are in `stays`, since they did before.

        Optimizers of one model may share groups with `shares_groups`: what comes in a backward of others alone goes
        as it is, or as zeros. Where gradients are compressed it would not be as it was: something of what is held
        back would be sent.
        """
        layers: list[LayerSpec] = []
        parameters: list[torch.nn.Parameter] = []
        owners: list[int] = []
        kept = frozenset(stays)
        for position, each in enumerate(optimized):
            model = each.model
            shares = shares_groups and model is not None
            kind = next(i for i, other in enumerate(optimized) if other.model is model) if shares else position
            for name, p in reversed(each.named()):
                if p.requires_grad or id(p) in kept:
                    shown = name if not position else f"optimizer {position}: {name}"
                    layers.append(layer_of(shown, p, kind))
                    parameters.append(p)
                    owners.append(position)
        ids = {id(p): number for number, p in enumerate(parameters)}
        return cls(Layout(tuple(layers)), tuple(parameters), tuple(owners), tuple(optimized), ids)

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [layer.name for layer in self.layout.layers]

    def checksums(self) -> NDArray[np.float64]:
        """A checksum of each parameter's values, shape (n,)."""
        return np.array([checksum_of_parameter(p) for p in self.parameters], dtype=np.float64)

    def checksum(self) -> int:
        """A checksum of all values, more than 0 and less than 2^48."""
        return 1 + _digest(self.checksums().tobytes()) % ((1 << 48) - 1)


class Watch:
    """Looks whether optimizers train what is exchanged: `look` costs microseconds where nothing has changed.

    What has changed is followed, or not, by all workers alike: `digest` is of all that they must have alike.
    """

    def __init__(self) -> None:
        self.optimized: list[Optimized] = []
        # Parameters as they were seen at last, of each optimizer, and what was seen of them.
        self._lists: list[list[torch.nn.Parameter]] = []
        self._facts_seen: list[Any] = []
        self._set: ExchangedSet | None = None
        self._facts: dict[int, tuple[Any, ...]] = {}
        self._known: dict[tuple[Any, ...], tuple[int, bool]] = {}
        self._last = (0, False)

    def opened(self, exchanged: ExchangedSet) -> None:
        """An exchange of these is open from now on, of optimizers that live."""
        self.optimized = list(exchanged.optimized)
        for each in self.optimized:
            each.was_exchanged = True
        self._set, self._lists = exchanged, []
        self._known.clear()
        self._facts = {id(p): _facts_of(p) for each in self.optimized for p in each.parameters()}
        self._facts |= {id(p): _facts_of(p) for p in exchanged.parameters}

    def look(self) -> tuple[int, bool]:
        """A digest of what is trained now, and whether the exchange cannot be what it is."""
        lists = [each.parameters() for each in self.optimized]
        facts = [_facts_of(p) for own in lists for p in own]
        if _are_same(lists, self._lists) and facts == self._facts_seen:
            return self._last
        self.find_others()
        lists = [each.parameters() for each in self.optimized]
        facts = [_facts_of(p) for own in lists for p in own]
        self._lists, self._facts_seen = lists, facts
        seen = (*(tuple(map(id, own)) for own in lists), *facts)
        found = self._known.get(seen)
        if found is None:
            if len(self._known) == _KNOWN:
                self._known.clear()
            found = self._known[seen] = self._digest(), self._must_change()
        self._last = found
        return found

    def find_others(self) -> None:
        """Have the first optimizer of each model take parameters that no optimizer has."""
        present = [each for each in self.optimized if not each.is_retired]
        taken = {id(p) for each in present for p in each.own()}
        seen: list[torch.nn.Module] = []
        for each in present:
            model = each.model
            if model is not None and not any(model is other for other in seen):
                seen.append(model)
                each.find_others(taken)
            elif model is not None:
                each.find_others(frozenset(map(id, model.parameters())))

    def changes(self) -> str:
        """Changes since the exchange was opened, in words."""
        assert self._set is not None  # noqa: S101
        told = []
        present: set[int] = set()
        for each in self.optimized:
            for name, p in each.named():
                present.add(id(p))
                told += _change(name, self._facts.get(id(p)), _facts_of(p))
        names = zip(self._set.names, self._set.parameters, strict=True)
        told += [f"{name} is not trained any more" for name, p in names if id(p) not in present]
        told += ["there is another optimizer"] * (len(self.optimized) - len(self._set.optimized))
        shown = ", ".join(told[:_SHOWN]) + (f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")
        return shown or "as before"

    def _digest(self) -> int:
        text = "\n".join(
            f"{position} {name} {tuple(p.shape)} {p.dtype} {p.requires_grad}"
            for position, each in enumerate(self.optimized)
            for name, p in each.named()
        )
        return _digest(text.encode())

    def _must_change(self) -> bool:
        if self._set is None or tuple(self.optimized) != self._set.optimized:
            return True
        trained = {id(p) for each in self.optimized for p in each.parameters()}
        needed = {id(p) for each in self.optimized for p in each.parameters() if p.requires_grad}
        ids = self._set.ids.keys()
        if needed - ids or ids - trained:
            return True
        return any(self._facts[id(p)][1:] != _facts_of(p)[1:] for p in self._set.parameters)


def checksum_of_parameter(parameter: torch.Tensor) -> int:
    """The CRC-32C of a tensor's values in their order, wherever they lie."""
    values = parameter.detach().to("cpu").contiguous()
    if not values.numel():
        return 0
    return crc32c(values.view(-1).view(torch.uint8).numpy().data)


def digest_of_tensors(tensors: Iterable[torch.Tensor], said: str = "") -> int:
    """A digest of the shapes and types of tensors, and of what is said of them."""
    shown = [f"{tuple(each.shape)} {each.dtype}" for each in tensors if not is_spread(each)]
    return _digest("\n".join([said, *shown]).encode())


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether both have the same objects in the same order."""
    return len(some) == len(others) and all(map(is_, some, others))


def _change(name: str, before: tuple[Any, ...] | None, now: tuple[Any, ...]) -> list[str]:
    if before is None:
        return [f"{name} is new"]
    if before[1:] != now[1:]:
        kinds = [f"{dtype} {list(shape)} on {device}" for _, dtype, shape, device in (before, now)]
        return [f"{name} was {kinds[0]} and is {kinds[1]}"]
    if before[0] != now[0]:
        return [f"{name} {'needs a gradient now' if now[0] else 'is frozen'}"]
    return []


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest(), "little")
