"""Parsers that are given anything: each ends as it is documented, and takes memory by what it is given alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.inputs.fuzzing.edits import KINDS, Edit, edited
from benchmarks.inputs.fuzzing.table import CORPUS, TARGETS, corpus_of
from benchmarks.inputs.fuzzing.target import Target

MOST_BYTES = 48 << 20
"""Bytes that an input may make a parser take: buffers of 4 MiB for frames of each kind, what is compiled first."""
PLACES = st.integers(0, (1 << 16) - 1)
EDITS = st.lists(st.builds(Edit, st.sampled_from(KINDS), PLACES, PLACES), min_size=1, max_size=6)


@pytest.fixture(params=sorted(TARGETS))
def fuzzed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Target, Callable[[bytes], object]]:
    """A target, and what is called with an input."""
    target = TARGETS[request.param]
    call = target.make(tmp_path)
    taken = [target.takes(call, seed) for seed in target.seeds]
    # One that refuses all it is given reaches nothing; memory is shared with nobody here.
    assert any(taken) or target.name == "shared_buffer"
    return target, call


def give(target: Target, call: Callable[[bytes], object], data: bytes) -> None:
    tracemalloc.start()
    try:
        target.takes(call, data)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, f"{target.name} takes memory by what it is told"
    finally:
        tracemalloc.stop()


def test_changed_inputs_end_as_documented(fuzzed: tuple[Target, Callable[[bytes], object]]) -> None:
    target, call = fuzzed

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(target.seeds), EDITS, st.sampled_from(target.seeds))
    def run(data: bytes, edits: list[Edit], other: bytes) -> None:
        give(target, call, edited(data, edits, other))

    run()
    for data in (b"", b"\0", *corpus_of(target.name)):
        give(target, call, data)


def test_inputs_that_are_kept_belong_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= TARGETS.keys()
