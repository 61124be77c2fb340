"""Rows and columns of activations move between ranks as NumPy's slices of the whole matrix say."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parts_network import MemoryMover, MemoryNetwork

from taihu.allreduce.parts.shards import (
    columns_to_rows,
    gather_columns,
    gather_rows,
    rows_to_columns,
    scatter_columns,
    scatter_rows,
    sum_terms,
)

quick = settings(deadline=None, max_examples=25)
counts = st.integers(1, 4).flatmap(
    lambda size: st.tuples(*(st.lists(st.integers(0, 5), min_size=size, max_size=size) for _ in range(2)))
)


def bounds(sizes: list[int]) -> tuple[int, ...]:
    return (0, *accumulate(sizes))


@quick
@given(counts, st.integers(0, 99))
def test_rows_and_columns_are_those_of_the_whole(sizes: tuple[list[int], list[int]], seed: int) -> None:
    rows, columns = bounds(sizes[0]), bounds(sizes[1])
    whole = np.random.default_rng(seed).standard_normal((rows[-1], columns[-1])).astype(np.float32)
    network = MemoryNetwork(len(sizes[0]))

    def work(mover: MemoryMover) -> None:
        rank = mover.rank
        mine = slice(rows[rank], rows[rank + 1])
        own = slice(columns[rank], columns[rank + 1])
        gathered = np.full_like(whole, np.nan)
        gathered[mine] = whole[mine]
        mover.start("", gather_rows(rank, rows, gathered))()
        assert gathered.tobytes() == whole.tobytes()

        gathered = np.full_like(whole, np.nan)
        strip = np.ascontiguousarray(whole[:, own])
        mover.start("", gather_columns(rank, columns, strip, gathered))()
        assert gathered.tobytes() == whole.tobytes()

        block = np.full((sizes[0][rank], columns[-1]), np.nan, dtype=np.float32)
        mover.start("", columns_to_rows(rank, rows, columns, strip, block))()
        assert block.tobytes() == whole[mine].tobytes()

        back = np.full_like(strip, np.nan)
        mover.start("", rows_to_columns(rank, rows, columns, block, back))()
        assert back.tobytes() == strip.tobytes()

    network.run(work)
    # Lean volumes: what a rank does not have of the whole, or what changes hands.
    for rank in range(network.size):
        cells = whole.size
        mine, own = sizes[0][rank] * columns[-1], rows[-1] * sizes[1][rank]
        both = sizes[0][rank] * sizes[1][rank]
        assert network.received_bytes[rank] == 4 * ((cells - mine) + (cells - own) + (mine - both) + (own - both))


@quick
@given(counts, st.integers(0, 99))
def test_sums_are_scattered_in_rank_order(sizes: tuple[list[int], list[int]], seed: int) -> None:
    rows, columns = bounds(sizes[0]), bounds(sizes[1])
    size = len(sizes[0])
    terms = np.random.default_rng(seed).standard_normal((size, rows[-1], columns[-1])).astype(np.float32)
    total = terms[0].copy()
    for term in terms[1:]:
        total += term

    def work(mover: MemoryMover) -> None:
        rank = mover.rank
        mine = slice(rows[rank], rows[rank + 1])
        own = slice(columns[rank], columns[rank + 1])
        out = np.full_like(total[mine], np.nan)
        received = np.full((size, *out.shape), np.nan, dtype=np.float32)
        mover.start("", scatter_rows(rank, rows, terms[rank], received))()
        sum_terms(rank, terms[rank][mine], received, out)
        assert out.tobytes() == total[mine].tobytes()

        out = np.ascontiguousarray(np.full_like(total[:, own], np.nan))
        received = np.full((size, *out.shape), np.nan, dtype=np.float32)
        mover.start("", scatter_columns(rank, columns, terms[rank], received))()
        sum_terms(rank, terms[rank][:, own], received, out)
        assert out.tobytes() == np.ascontiguousarray(total[:, own]).tobytes()

    MemoryNetwork(size).run(work)
