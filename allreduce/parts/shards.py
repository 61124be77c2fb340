"""Transfers of rows and columns of activations between ranks that each hold a column range of a layer.

A batch has rows [rows[r], rows[r+1]) of rank r; a matrix of `columns[-1]` features has columns [columns[r],
columns[r+1]) of rank r. Activations are whole on the rank that owns their rows, or of all rows on the rank that owns
their columns. Everything here is pure: it says which arrays go where, as a `Transfer`. Volumes are the lean ones of
docs/methods.md section 3.

Arrays are C-contiguous; R = rows[-1] rows, m the own ones, n the own columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.parts.mesh import Transfer

Array = NDArray[Any]
Bounds = Sequence[int]
Pieces = Callable[[int], Sequence[Array]]


def gather_rows(rank: int, rows: Bounds, whole: Array) -> Transfer:
    """Complete `whole` (R, K), in which the own rows are."""
    own = _block(whole, rows, rank)
    return _transfer(rank, rows, lambda to: own, lambda sender: _block(whole, rows, sender))


def gather_columns(rank: int, columns: Bounds, own: Array, whole: Array) -> Transfer:
    """Complete `whole` (R, N) from everybody's columns (R, n); the own ones are copied at once."""
    whole[:, columns[rank] : columns[rank + 1]] = own
    return _transfer(rank, columns, lambda to: [own.reshape(-1)], lambda sender: _strip(whole, columns, sender))


def columns_to_rows(rank: int, rows: Bounds, columns: Bounds, own: Array, mine: Array) -> Transfer:
    """The transfer from columns of all rows `own` (R, n) to all columns of the own rows `mine` (m, N)."""
    mine[:, columns[rank] : columns[rank + 1]] = own[rows[rank] : rows[rank + 1]]
    return _transfer(rank, rows, lambda to: _block(own, rows, to), lambda sender: _strip(mine, columns, sender))


def rows_to_columns(rank: int, rows: Bounds, columns: Bounds, mine: Array, own: Array) -> Transfer:
    """The transfer from all columns of the own rows `mine` (m, N) to the own columns of all rows `own` (R, n)."""
    own[rows[rank] : rows[rank + 1]] = mine[:, columns[rank] : columns[rank + 1]]
    return _transfer(rank, rows, lambda to: _strip(mine, columns, to), lambda sender: _block(own, rows, sender))


def scatter_rows(rank: int, rows: Bounds, terms: Array, received: Array) -> Transfer:
    """Bring each rank its rows of everybody's `terms` (R, K); `received` (P, m, K) is to be summed over ranks.

    The own term is `terms` itself, of which nothing is copied: `received[rank]` is left alone.
    """
    return _transfer(rank, rows, lambda to: _block(terms, rows, to), lambda sender: [received[sender].reshape(-1)])


def scatter_columns(rank: int, columns: Bounds, terms: Array, received: Array) -> Transfer:
    """Bring each rank its columns of everybody's `terms` (R, K); `received` (P, R, k) as in `scatter_rows`."""
    return _transfer(
        rank, columns, lambda to: _strip(terms, columns, to), lambda sender: [received[sender].reshape(-1)]
    )


def _transfer(rank: int, bounds: Bounds, sends: Pieces, receives: Pieces) -> Transfer:
    ranks = range(len(bounds) - 1)
    return Transfer(
        [[] if other == rank else sends(other) for other in ranks],
        [[] if other == rank else receives(other) for other in ranks],
    )


def _block(array: Array, rows: Bounds, rank: int) -> list[Array]:
    return [array[rows[rank] : rows[rank + 1]].reshape(-1)]


def _strip(array: Array, columns: Bounds, rank: int) -> list[Array]:
    start, stop = columns[rank], columns[rank + 1]
    if start == 0 and stop == array.shape[1]:
        return [array.reshape(-1)]
    return list(array[:, start:stop]) if stop > start else []


def sum_terms(rank: int, own: Array, received: Array, out: Array) -> None:
    """Set `out` to the sum of everybody's terms in rank order; `own` stands for `received[rank]`."""
    terms = [own if other == rank else received[other] for other in range(len(received))]
    np.add(terms[0], terms[1], out=out) if len(terms) > 1 else np.copyto(out, terms[0])
    for term in terms[2:]:
        out += term
