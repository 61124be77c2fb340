"""Predicted routes against cases computed by hand, and against what the state machines send for random slices."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sparse_network import Network, make_exchange

from taihu.allreduce.ring.schedule import Ring, buffer_layout
from taihu.allreduce.sparse.exchange import Message, Slice
from taihu.core.base.errors import ConfigError
from taihu.core.planner.partition import Shard
from taihu.core.planner.sparse_route import SparseAlgorithm, SparseWorkload, choose, predict
from taihu.kernels.packing import pack, packed_bound

HALF = SparseWorkload(elements=1000, density=0.5, ranks=4, alpha_seconds=0.0, seconds_per_byte=1.0)
Measure = Callable[[Sequence[float]], Any]
workloads = st.builds(
    SparseWorkload,
    elements=st.integers(0, 10**8),
    density=st.floats(1e-6, 1.0),
    ranks=st.integers(1, 300),
    alpha_seconds=st.floats(0.0, 0.1),
    seconds_per_byte=st.floats(0.0, 1e-5),
    value_bytes=st.sampled_from([2, 4]),
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # An index takes 2 bits at density 1/2, and a bit for every element at 15/16, which is the union of four.
        ({}, (6000.0, 3 * 2125.0, 3 * (2125 + 3875) / 4, 4 * 2125.0)),
        # Sums are fp32 all the same.
        ({"value_bytes": 2}, (6000.0, 3 * 1125.0, 3 * (1125 + 3875) / 4, 1125 + 3 * 2125.0)),
        ({"alpha_seconds": 1.0, "seconds_per_byte": 0.0}, (6.0, 3.0, 6.0, 4.0)),
        ({"alpha_seconds": 1.0, "seconds_per_byte": 0.0, "ranks": 5}, (8.0, 4.0, 8.0, 6.0)),
        ({"alpha_seconds": 1.0, "seconds_per_byte": 0.0, "ranks": 16}, (30.0, 15.0, 30.0, 8.0)),
        ({"alpha_seconds": 1.0, "seconds_per_byte": 0.0, "ranks": 17}, (32.0, 16.0, 32.0, 10.0)),
        ({"alpha_seconds": 1.0, "ranks": 1}, (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_cases_computed_by_hand(changes: dict[str, Any], expected: tuple[float, ...]) -> None:
    seconds = predict(replace(HALF, **changes))
    routes = (SparseAlgorithm.RING, SparseAlgorithm.ALLGATHER, SparseAlgorithm.REDUCE_SCATTER, SparseAlgorithm.GTOPK)
    assert tuple(seconds[route] for route in routes) == pytest.approx(expected, rel=1e-12)


def test_what_is_chosen() -> None:
    model = SparseWorkload(25_000_000, 0.001, ranks=4, alpha_seconds=50e-6, seconds_per_byte=8e-9)
    assert choose(model, allow_gtopk=False) is SparseAlgorithm.ALLGATHER
    # The union of four is then 0.76 of the elements, where they have sent 1.2.
    assert choose(replace(model, density=0.3), allow_gtopk=False) is SparseAlgorithm.REDUCE_SCATTER
    assert choose(replace(model, density=1.0), allow_gtopk=True) is SparseAlgorithm.RING
    many = replace(model, ranks=64, density=0.03)
    assert choose(many, allow_gtopk=True) is SparseAlgorithm.GTOPK
    assert choose(many, allow_gtopk=False) is SparseAlgorithm.REDUCE_SCATTER
    assert choose(replace(model, ranks=1), allow_gtopk=True) is SparseAlgorithm.RING


@settings(deadline=None, max_examples=100)
@given(workloads, st.booleans())
def test_the_least_of_the_allowed_is_chosen(workload: SparseWorkload, allowed: bool) -> None:
    chosen, seconds = choose(workload, allow_gtopk=allowed), predict(workload)
    assert allowed or chosen is not SparseAlgorithm.GTOPK
    assert all(seconds[chosen] <= seconds[r] for r in SparseAlgorithm if allowed or r is not SparseAlgorithm.GTOPK)
    assert all(0 <= s < np.inf for s in seconds.values())


def random_slices(workload: SparseWorkload, seed: int) -> list[Slice]:
    rng = np.random.default_rng(seed)
    count = round(workload.density * workload.elements)
    drawn = [rng.choice(workload.elements, count, replace=False) for _ in range(workload.ranks)]
    return [Slice(np.sort(d).astype(np.int32), rng.standard_normal(count).astype(np.float32)) for d in drawn]


def encoded_bytes(message: Message, value_bytes: float) -> float:
    """Of its values, and of its indices as they are encoded in frames."""
    count = len(message.indices)
    bounds = np.array([[message.start, message.stop]], dtype=np.int64)
    sections = np.empty(packed_bound(count, 1), dtype=np.uint8)
    _, size = pack(message.indices, message.values, bounds, np.empty_like(message.values), sections)
    return size + value_bytes * count


def spent(workload: SparseWorkload, algorithm: str) -> tuple[float, float]:
    """Seconds of all rounds, with the mean and with the largest message of each of them."""
    count = round(workload.density * workload.elements)
    slices = random_slices(workload, workload.ranks)
    network = Network(
        [
            make_exchange(algorithm, own, rank=rank, size=workload.ranks, elements=workload.elements, k=count)
            for rank, own in enumerate(slices)
        ]
    )
    network.run(random.Random(0).randrange, ranks=range(workload.ranks))
    # The rounds in which ranks send what they have brought; everything later is sums.
    own_rounds = 1 if algorithm == "gtopk" else workload.ranks - 1
    rounds: dict[int, list[float]] = {}
    for message in network.sent:
        value_bytes = workload.value_bytes if message.round < own_rounds else 4
        rounds.setdefault(message.round, []).append(encoded_bytes(message, value_bytes))
    return seconds_of(workload, rounds, np.mean), seconds_of(workload, rounds, np.max)


def seconds_of(workload: SparseWorkload, rounds: dict[int, list[float]], measure: Measure) -> float:
    return sum(
        workload.alpha_seconds + workload.seconds_per_byte * float(measure(sizes)) for sizes in rounds.values()
    )


@pytest.mark.parametrize("algorithm", ["allgather", "reduce_scatter", "gtopk"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize(("density", "value_bytes"), [(0.003, 4), (0.03, 2), (0.3, 4), (0.01, 0.5)])
def test_formulas_count_what_is_sent(algorithm: str, ranks: int, density: float, value_bytes: float) -> None:
    # Such that the start-ups of a route are neither all of it nor nothing.
    workload = SparseWorkload(
        200_000, density, ranks, alpha_seconds=2e-5, seconds_per_byte=8e-9, value_bytes=value_bytes
    )
    predicted = predict(workload)[SparseAlgorithm(algorithm)]
    mean, largest = spent(workload, algorithm)
    assert mean == pytest.approx(predicted, rel=0.01)
    assert predicted <= largest * 1.01
    assert largest <= predicted * 1.15


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_the_ring_formula_counts_its_segments(ranks: int) -> None:
    workload = SparseWorkload(1000 * ranks, 1.0, ranks, alpha_seconds=3.0, seconds_per_byte=0.01)
    layout = buffer_layout(workload.elements)
    chunks = [Shard(layout, ranks, rank).state_frames(workload.elements) for rank in range(ranks)]
    ring = Ring(0, chunks)
    sent = ring.first_segments() if ranks > 1 else []
    for hop in range(2 * (ranks - 1)):
        (frame,) = chunks[(-hop - 1) % ranks]
        forward = ring.arrive(hop, frame.offset, frame.count).forward
        sent += [forward] if forward else []
    assert ring.done
    seconds = sum(3.0 + 0.04 * segment.frame.count for segment in sent)
    assert seconds == pytest.approx(predict(workload)[SparseAlgorithm.RING])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"elements": -1}, "sparse route for -1 elements on 4 ranks"),
        ({"ranks": 0}, "on 0 ranks: expected 0 and 1 at least"),
        ({"density": 0.0}, "at density 0.0: expected a share above 0 and at most 1"),
        ({"density": 1.1}, "density 1.1"),
        ({"density": float("nan")}, "density nan"),
        ({"alpha_seconds": -1.0}, "-1.0 s per message"),
        ({"alpha_seconds": float("inf")}, "inf s per message"),
        ({"seconds_per_byte": -1e-9}, "-1e-09 s per byte"),
        ({"seconds_per_byte": float("inf")}, "inf s per byte"),
        ({"value_bytes": 3}, "values of 3 bytes: expected one of 4, 2, 1, 0.5, 0.25"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(HALF, **changes)
