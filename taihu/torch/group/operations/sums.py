"""Reductions over the ranks of a group.

Sums and means of floating-point tensors take the ring or shared memory. All others are cut into one slice for each
rank, which reduces its slice of everybody's tensor in rank order: all ranks hold the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist

from taihu.core.planner.partition import slice_bounds
from taihu.torch.group.operations.bits import SUMMED, bytes_of, values_of
from taihu.torch.group.operations.exchange import Bytes, Turn

_GATHERED_BYTES: Final = 64 << 10
"""Up to so many bytes of all ranks together everybody reduces everything: one transfer instead of two."""

_ADDED: Final = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
)
"""The types that PyTorch adds on CPUs; it has others that it only keeps."""

Combine = Callable[[Any, Any], None]


class Reduction:
    """A way of reducing tensors of one type: `combine(total, term)` changes `total`; a mean is divided at the end."""

    def __init__(self, name: str, combine: Combine, *, is_sum: bool = False, is_mean: bool = False) -> None:
        self.name = name
        self.combine = combine
        self.is_sum = is_sum or is_mean
        self.is_mean = is_mean

    def finish(self, total: Any, size: int) -> None:
        """Make the mean of a sum of `size` terms, if that is wanted."""
        if self.is_mean:
            total.mul_(1.0 / size)


_COMBINED: Final = MappingProxyType(
    {
        "SUM": lambda total, term: total.add_(term),
        "AVG": lambda total, term: total.add_(term),
        "PRODUCT": lambda total, term: total.mul_(term),
        "MIN": lambda total, term: torch.minimum(total, term, out=total),
        "MAX": lambda total, term: torch.maximum(total, term, out=total),
        "BAND": lambda total, term: total.bitwise_and_(term),
        "BOR": lambda total, term: total.bitwise_or_(term),
        "BXOR": lambda total, term: total.bitwise_xor_(term),
    }
)


_NAMED: Final = tuple((name, getattr(dist.ReduceOp, name)) for name in (*_COMBINED, "PREMUL_SUM"))


def reduction_of(what: str, op: Any, dtype: Any) -> Reduction:
    """The reduction of a ReduceOp for tensors of a type.

    Raises:
        ValueError: there is none.
    """
    name = _name_of(op)
    bits = name in ("BAND", "BOR", "BXOR")
    ordered = name in ("MIN", "MAX")
    exact = not (dtype.is_floating_point or dtype.is_complex)
    known = name in _COMBINED and dtype in _ADDED and not (ordered and dtype.is_complex)
    if not known or (bits and not exact) or (name == "AVG" and exact):
        raise ValueError(
            f"taihu {what}: no {name} of {dtype}; expected SUM, AVG, PRODUCT, MIN, MAX, of integers BAND, BOR, BXOR"
        )
    return Reduction(name, _COMBINED[name], is_sum=name == "SUM", is_mean=name == "AVG")


def check_sum(what: str, op: Any) -> None:
    """Raise ValueError unless a ReduceOp is SUM, the only one that there is of sparse tensors, as with Gloo."""
    if _name_of(op) != "SUM":
        raise ValueError(f"taihu {what}: no {_name_of(op)} of sparse tensors; expected SUM, or dense tensors")


def _name_of(op: Any) -> str:
    kind = op.op if hasattr(op, "op") else op
    return next((name for name, known in _NAMED if kind == known), str(kind))


def all_reduce(turn: Turn, tensor: Any, reduction: Reduction) -> None:
    """Replace a contiguous tensor by its reduction over all ranks."""
    if reduction.is_sum and tensor.dtype in SUMMED:
        values = values_of(tensor)
        turn.allreduce(values, SUMMED[tensor.dtype], mean=reduction.is_mean)
        return
    flat = tensor.detach().view(-1)
    if flat.numel() * flat.element_size() * turn.size <= _GATHERED_BYTES:
        _gather_and_reduce(turn, flat, reduction)
        return
    slices = _slices(turn, flat)
    own = slices[turn.rank]
    own.copy_(_reduce_slices(turn, slices, reduction))
    data = bytes_of(own)
    ranks = range(turn.size)
    turn.swap([[data] for _ in ranks], [[bytes_of(each)] for each in slices])


def reduce_to(turn: Turn, tensor: Any, reduction: Reduction, root: int) -> None:
    """Replace a contiguous tensor on rank `root` by its reduction over all ranks; others keep theirs."""
    slices = _slices(turn, tensor.detach().view(-1))
    own = _reduce_slices(turn, slices, reduction)
    nothing: list[list[Bytes]] = [[] for _ in range(turn.size)]
    if turn.rank == root:
        slices[root].copy_(own)
        turn.swap(nothing, [[bytes_of(each)] for each in slices])
    else:
        sends = [[bytes_of(own)] if rank == root else [] for rank in range(turn.size)]
        turn.swap(sends, nothing)


def reduce_scatter(turn: Turn, out: Any, terms: list[Any], reduction: Reduction) -> None:
    """Set `out` to the reduction of what all ranks have for this one; `terms` are one for each rank."""
    out.copy_(
        _reduce_slices(turn, [each.detach().contiguous().view(-1) for each in terms], reduction).view(out.shape)
    )


def _slices(turn: Turn, flat: Any) -> list[Any]:
    bounds = [slice_bounds(len(flat), turn.size, rank) for rank in range(turn.size)]
    return [flat[start:stop] for start, stop in bounds]


def _reduce_slices(turn: Turn, slices: list[Any], reduction: Reduction) -> Any:
    """The reduction of everybody's slice for this rank, a new tensor; slices stay as they are."""
    own = slices[turn.rank]
    terms = [own if rank == turn.rank else torch.empty_like(own) for rank in range(turn.size)]
    turn.swap([[bytes_of(each)] for each in slices], [[bytes_of(each)] for each in terms])
    return _reduced(terms, reduction)


def _gather_and_reduce(turn: Turn, flat: Any, reduction: Reduction) -> None:
    ranks = range(turn.size)
    terms = [flat if rank == turn.rank else torch.empty_like(flat) for rank in ranks]
    data = bytes_of(flat)
    turn.swap([[data] for _ in ranks], [[bytes_of(each)] for each in terms])
    flat.copy_(_reduced(terms, reduction))


def _reduced(terms: list[Any], reduction: Reduction) -> Any:
    """The reduction of terms in order, a new tensor."""
    total = terms[0].clone()
    for term in terms[1:]:
        reduction.combine(total, term)
    reduction.finish(total, len(terms))
    return total
