"""Outputs of collectives as they follow from what all ranks have, computed by one process: an oracle beside Gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

__all__ = ["CollectiveCall", "computed", "reduced"]

Given = Callable[[int, int], Any]
"""The tensor that rank `rank` brings; of several the one with number `salt`, 0 of one alone."""

_COMBINE: Final[Mapping[str, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
)


@dataclass(frozen=True)
class CollectiveCall:
    """A call of all ranks as one of them makes it: its kind, reduction, root, and this rank of so many."""

    kind: str
    reduction: str
    root: int
    rank: int
    size: int


def computed(call: CollectiveCall, given: Given) -> list[Any] | None:
    """The outputs on this rank; None for kinds that are not known here."""
    ranks, is_root = range(call.size), call.root == call.rank
    outputs: Mapping[str, Callable[[], list[Any]]] = {
        "all_reduce": lambda: [reduced(call.reduction, [given(rank, 0) for rank in ranks])],
        "reduce": lambda: [reduced(call.reduction, [given(rank, 0) for rank in ranks])] if is_root else [],
        "reduce_scatter": lambda: [reduced(call.reduction, [given(rank, call.rank) for rank in ranks])],
        "broadcast": lambda: [given(call.root, 0)],
        "scatter": lambda: [given(call.root, call.rank)],
        "all_gather": lambda: [given(rank, 0) for rank in ranks],
        "gather": lambda: [given(rank, 0) for rank in ranks] if is_root else [],
        "all_to_all": lambda: [given(rank, call.rank) for rank in ranks],
    }
    compute = outputs.get(call.kind)
    return None if compute is None else compute()


def reduced(reduction: str, terms: Sequence[Any]) -> Any:
    """The reduction of tensors in rank order; of numbers that are rounded at all, rounded once, at the end."""
    dtype = terms[0].dtype
    is_exact = not (dtype.is_floating_point or dtype.is_complex)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    total, *others = [term if is_exact else term.to(wide) for term in terms]
    for term in others:
        total = _COMBINE[reduction](total, term)
    return (total / len(terms) if reduction == "AVG" else total).to(dtype)
