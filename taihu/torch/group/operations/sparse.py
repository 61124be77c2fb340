"""Sums of sparse COO tensors over the ranks of a group.

Sizes go to all ranks first, then indices and values: everybody adds everybody's in rank order, and all hold the same
bits. An index travels as one number, its place among the elements of the sparse dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.base.errors import ExchangeError
from taihu.torch.group.operations.bits import bytes_of
from taihu.torch.group.operations.exchange import Bytes, Turn

_TYPES: Final = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
)
_MOST_SIZES: Final = 64
"""PyTorch's own bound of dimensions."""
_SIZES_AT: Final = 4
"""Before them a header has the number of values, the type's place in `_TYPES`, of sparse dimensions, and of all."""

Header = NDArray[np.int64]


@dataclass(frozen=True)
class Form:
    """Things that all ranks have in common: sizes of the sparse dimensions, of the rest, the type."""

    sparse: tuple[int, ...]
    dense: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, tensor: Any) -> Form:
        """The form of a sparse COO tensor."""
        sparse = tensor.sparse_dim()
        return cls(tuple(tensor.shape[:sparse]), tuple(tensor.shape[sparse:]), tensor.dtype)

    @property
    def span(self) -> int:
        """The number of places that an index may name."""
        return math.prod(self.sparse)

    def __str__(self) -> str:
        return f"{self.dtype} {[*self.sparse, *self.dense]} with {len(self.sparse)} sparse dimensions"


@dataclass(frozen=True)
class Gathered:
    """Indices and values of all ranks, those of rank r from `starts[r]` to `starts[r + 1]`.

    `places` has shape (n,) and int64, ascending for each rank; `values` (n, *dense sizes).
    """

    starts: Sequence[int]
    places: Any
    values: Any

    @classmethod
    def empty(cls, form: Form, counts: Sequence[int]) -> Gathered:
        """Room for so many values of each rank."""
        starts = [0, *accumulate(counts)]
        places = torch.empty(starts[-1], dtype=torch.int64)
        return cls(starts, places, torch.empty((starts[-1], *form.dense), dtype=form.dtype))

    def of(self, rank: int) -> tuple[Any, Any]:
        """Views of one rank's indices and values."""
        part = slice(self.starts[rank], self.starts[rank + 1])
        return self.places[part], self.values[part]


def all_reduce(turn: Turn, tensor: Any) -> None:
    """Replace a sparse COO tensor by its sum over all ranks, coalesced.

    Raises:
        ExchangeError: the tensors of the ranks differ in form, or one has indices outside of its sizes.
    """
    own, form = tensor.detach().coalesce(), Form.of(tensor)
    places = places_in(form, own.indices(), turn.rank)
    gathered = Gathered.empty(form, _counts_of_all(turn, form, len(places)))
    for place, part in zip(gathered.of(turn.rank), (places, own.values()), strict=True):
        place.copy_(part)
    parts = [[bytes_of(part) for part in gathered.of(rank)] for rank in range(turn.size)]
    turn.swap([parts[turn.rank]] * turn.size, parts)
    total = add_up(form, gathered)
    with torch.no_grad():
        tensor.copy_(total)


def places_in(form: Form, indices: Any, rank: int) -> Any:
    """The places, shape (n,) and int64, that indices of shape (sparse dimensions, n) name.

    Raises:
        ExchangeError: an index is outside of the sizes; PyTorch does not look.
    """
    places = torch.zeros(indices.shape[1], dtype=torch.int64)
    for axis, (row, size) in enumerate(zip(indices, form.sparse, strict=True)):
        if len(row) and not 0 <= int(row.min()) <= int(row.max()) < size:
            raise ExchangeError(
                f"worker {rank} has an index from {int(row.min())} to {int(row.max())} in dimension {axis} of its "
                f"sparse tensor {form}; expected 0 to {size - 1}"
            )
        places.mul_(size).add_(row)
    return places


def _counts_of_all(turn: Turn, form: Form, count: int) -> list[int]:
    headers = np.zeros((turn.size, _SIZES_AT + _MOST_SIZES), dtype=np.int64)
    headers[turn.rank] = header(form, count)
    parts: list[list[Bytes]] = [[each.view(np.uint8)] for each in headers]
    turn.swap([parts[turn.rank]] * turn.size, parts)
    return read_headers(form, list(headers))


def header(form: Form, count: int) -> Header:
    """The form and number of values of a rank's tensor, shape (68,)."""
    sizes = (*form.sparse, *form.dense)
    words = (count, _TYPES.index(form.dtype), len(form.sparse), len(sizes), *sizes)
    return np.array(words + (0,) * (_SIZES_AT + _MOST_SIZES - len(words)), dtype=np.int64)


def read_headers(form: Form, headers: Sequence[Header]) -> list[int]:
    """The number of values of each rank; `form` is the own rank's, which is among them.

    Raises:
        ExchangeError: forms differ; the message is the same on all ranks.
    """
    for rank, each in enumerate(headers):
        if not np.array_equal(each[1:], headers[0][1:]):
            raise ExchangeError(
                f"worker {rank} has a sparse tensor {_form_in(each)}, worker 0 one of {_form_in(headers[0])}; "
                "expected the same type and sizes on all"
            )
        if not 0 <= int(each[0]) <= form.span:
            raise ExchangeError(
                f"worker {rank} tells of {each[0]} values of a sparse tensor {form}; expected at most {form.span}"
            )
    return [int(each[0]) for each in headers]


def _form_in(words: Header) -> Form | str:
    _, dtype, sparse, dims = words[:_SIZES_AT].tolist()
    if not (0 <= dtype < len(_TYPES) and 0 <= sparse <= dims <= _MOST_SIZES):
        return "of no form that there is"
    sizes = words[_SIZES_AT:].tolist()
    return Form(tuple(sizes[:sparse]), tuple(sizes[sparse:dims]), _TYPES[dtype])


def add_up(form: Form, gathered: Gathered) -> Any:
    """The sum of all ranks' tensors in rank order, coalesced.

    Raises:
        ExchangeError: a rank's places do not ascend, or are outside of the form's sizes.
    """
    ranks = range(len(gathered.starts) - 1)
    for rank in ranks:
        places, _ = gathered.of(rank)
        if len(places) and not (places[0] >= 0 and places[-1] < form.span and bool((places.diff() > 0).all())):
            raise ExchangeError(
                f"worker {rank} has sent indices of a sparse tensor {form} that do not ascend within it"
            )
    named, order = torch.unique(gathered.places, return_inverse=True)
    total = torch.zeros((len(named), *form.dense), dtype=form.dtype)
    for rank in ranks:
        # A rank names no place twice: each place gets its terms in rank order, whatever threads PyTorch takes.
        total.index_add_(0, order[gathered.starts[rank] : gathered.starts[rank + 1]], gathered.of(rank)[1])
    indices = torch.empty((len(form.sparse), len(named)), dtype=torch.int64)
    for row, found in zip(indices, torch.unravel_index(named, form.sparse), strict=True):
        row.copy_(found)
    shape = (*form.sparse, *form.dense)
    return torch.sparse_coo_tensor(indices, total, shape, is_coalesced=True, check_invariants=False)
