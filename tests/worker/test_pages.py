"""Memory that is given back is given back, and nothing else is."""

from __future__ import annotations

import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster import layout_of

from taihu.core.model.layout import Layout
from taihu.core.planner.partition import Shard
from taihu.worker.memory.initial_parameters import InitialParameters
from taihu.worker.memory.pages import Pages

PER_PAGE = mmap.PAGESIZE // 4


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@settings(deadline=None)
@given(st.integers(0, 5 * PER_PAGE), st.integers(0, 5 * PER_PAGE), st.integers(0, 5 * PER_PAGE))
def test_whole_pages_of_a_range_are_given_back(elements: int, one: int, other: int) -> None:
    pages = Pages(elements)
    assert pages.values.shape == (elements,)
    assert not pages.values.any()
    pages.values[:] = 1.0
    start, stop = sorted((min(one, elements), min(other, elements)))
    pages.release(start, stop)
    first = -(-start // PER_PAGE) * PER_PAGE
    last = stop if stop == elements else stop - stop % PER_PAGE
    expected = np.ones(elements, dtype=np.float32)
    expected[first : max(first, last)] = 0.0
    assert pages.values.tobytes() == expected.tobytes()


def test_memory_is_the_machines_again() -> None:
    pages = Pages(1 << 24)
    pages.values[:] = 1.0
    before = resident_bytes()
    pages.release(0, 1 << 23)
    assert before - resident_bytes() > 0.95 * (1 << 25)
    assert pages.values[1 << 23 :].min() == 1.0


@settings(deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=8), st.integers(1, 4), st.sampled_from([64, 1024, 9000]))
def test_initial_parameters_are_made_for_every_server_and_given_back(
    sizes: list[int], servers: int, frame_elements: int
) -> None:
    layout: Layout = layout_of(*sizes)
    pages = Pages(layout.elements)
    calls: list[int] = []

    def initialize(layer: int) -> None:
        calls.append(layer)
        pages.values[layout.offsets[layer] : layout.offsets[layer + 1]] = layer + 1

    initial = InitialParameters(layout, pages, initialize)
    for index in range(servers):
        calls.clear()
        for frame in Shard(layout, servers, index).state_frames(frame_elements):
            initial.prepare(frame)
            for piece in frame.pieces:
                layers = np.searchsorted(layout.offsets, np.arange(piece.start, piece.stop), side="right")
                assert (pages.values[piece.start : piece.stop] == layers).all()
        assert calls == sorted(set(calls))
    initial.close()
    kept = np.ones(layout.elements, dtype=bool)
    for start, stop in pairwise(layout.offsets):
        first = -(-start // PER_PAGE) * PER_PAGE
        kept[first : max(first, stop if stop == layout.elements else stop - stop % PER_PAGE)] = False
    assert not pages.values[~kept].any()
