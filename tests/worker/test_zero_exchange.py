"""The stages of ZeRO: the same bits, and only what a stage promises is held or moved."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import Cluster, Member, Values, initial_parameters, layout_of, make_job
from support.daemons import wait_for

from taihu.errors import TaihuError
from taihu.layout import Layout
from taihu.planner.groups import group_bounds
from taihu.wire.codec import BYTES_PER_VALUE
from worker.exchange.step_actions import Reading

LAYERS = (1, 700, 3, 4096, 2500, 2, 3000)
STEPS = range(1, 5)


def gradients(rank: int, step: int, elements: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(elements, dtype=np.float32)


def adam(layout: Layout, workers: int, rate: float = 0.01) -> NDArray[np.float64]:
    """Parameters after `STEPS`, in float64 (Kingma & Ba 2015, algorithm 1)."""
    parameters = initial_parameters(layout).astype(np.float64)
    first, second = np.zeros_like(parameters), np.zeros_like(parameters)
    for step in STEPS:
        mean = np.mean([gradients(rank, step, layout.elements).astype(np.float64) for rank in range(workers)], axis=0)
        first, second = 0.9 * first + 0.1 * mean, 0.999 * second + 0.001 * mean**2
        parameters -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return parameters


def ends_of(zero: int, servers: int, workers: int, plan: str, **settings: object) -> list[Values]:
    layout = layout_of(*LAYERS)
    ends: dict[int, Values] = {}

    def work(member: Member) -> None:
        for step in STEPS:
            ends[member.rank] = member.step(step, gradients(member.rank, step, layout.elements))

    exchange = {"plan": plan, "zero": zero, "frame_bytes": 4096, "window_frames": 2, "transport": "tcp", **settings}
    optimizer = {"name": "adam", "learning_rate": 0.01}
    with Cluster(make_job(servers, workers, exchange=exchange, optimizer=optimizer)) as cluster:
        cluster.run(layout, work)
        cluster.join()
        assert cluster.outcomes == dict.fromkeys(range(servers))
    return [ends[rank] for rank in range(workers)]


@pytest.mark.parametrize("plan", ["per-layer", "bucket:12kB", "single"])
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 3), (3, 2)])
def test_every_stage_ends_with_the_same_bits(servers: int, workers: int, plan: str) -> None:
    stages = [ends_of(zero, servers, workers, plan) for zero in range(4)]
    stages.append(ends_of(3, servers, workers, plan, live_bytes=40000))
    np.testing.assert_allclose(stages[1][0], adam(layout_of(*LAYERS), workers), rtol=1e-4, atol=1e-6)
    for ends in stages:
        for values in ends:
            assert values.tobytes() == stages[1][0].tobytes()


@pytest.mark.parametrize(("zero", "transport"), [(0, "grpc"), (0, "same-host"), (2, "grpc"), (3, "grpc")])
def test_every_transport_ends_with_the_same_bits(zero: int, transport: str) -> None:
    ends = [values.tobytes() for values in ends_of(zero, 2, 2, "per-layer", transport=transport)]
    assert ends == [ends_of(1, 2, 2, "per-layer")[0].tobytes()] * 2


@pytest.mark.parametrize(
    ("zero", "live", "volume"), [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 3), (3, 0.5, 2.5), (3, 1, 2)]
)
def test_the_volume_of_a_step_is_that_of_the_paper_less_what_stays(zero: int, live: float, volume: float) -> None:
    layout = layout_of(*[8000] * 80)
    moved: list[int] = []

    def work(member: Member) -> None:
        exchange = member.exchange
        bounds = group_bounds(layout, exchange.groups)
        for step in (1, 2, 3, 4):
            for group in reversed(range(len(bounds))):
                exchange.wait(group)
            # From the end of a forward to that of a later one, so that what is fetched ahead of it counts once.
            totals = exchange.totals()
            moved.append(totals.sent_bytes + totals.received_bytes)
            exchange.begin(step)
            for group in range(len(bounds)):
                exchange.prepare(group)
                exchange.push(group)
        for group in range(len(bounds)):
            exchange.complete(group)

    live_bytes = int(live * layout.elements * BYTES_PER_VALUE)
    with Cluster(make_job(2, 1, exchange={"plan": "per-layer", "zero": zero, "live_bytes": live_bytes})) as cluster:
        cluster.run(layout, work)
    assert (moved[3] - moved[0]) / 3 == pytest.approx(volume * layout.elements * BYTES_PER_VALUE, rel=0.03)


def test_stage_2_gives_gradients_back_and_holds_no_more_than_its_room() -> None:
    layout = layout_of(*[8192] * 12)

    def work(member: Member) -> None:
        exchange, held = member.exchange, member.arenas.gradients
        exchange.begin(1)
        bounds = group_bounds(layout, exchange.groups)
        for group, (start, stop) in enumerate(bounds):
            exchange.prepare(group)
            held[start:stop] = 1.0
            written = sum(1 for first, last in bounds if held[first:last].any())
            assert written <= 4
            exchange.push(group)
        for group in range(len(bounds)):
            exchange.complete(group)
        assert not held.any()

    with Cluster(make_job(1, 2, exchange={"plan": "per-layer", "zero": 2, "bucket_bytes": 32768})) as cluster:
        cluster.run(layout, work)


@pytest.mark.parametrize("live_groups", [0, 3, 5, 8])
def test_stage_3_holds_the_group_in_use_and_as_many_of_the_next_ones_as_it_may(live_groups: int) -> None:
    layout = layout_of(*[4096] * 8)
    initial = initial_parameters(layout)
    room = max(2, live_groups)

    def work(member: Member) -> None:
        exchange, parameters = member.exchange, member.arenas.parameters
        bounds = group_bounds(layout, exchange.groups)

        def held() -> set[int]:
            return {other for other, (first, last) in enumerate(bounds) if parameters[first:last].any()}

        parameters[:] = 0
        for group in reversed(range(8)):
            start, stop = bounds[group]
            exchange.wait(group)
            assert parameters[start:stop].tobytes() == initial[start:stop].tobytes()
            # What comes next in forward, then in backward.
            assert held() <= set([*reversed(range(group + 1)), *range(group + 1, 8)][:room])
        assert held() == set(range(room))
        exchange.begin(1)
        for group, (start, stop) in enumerate(bounds):
            exchange.prepare(group)
            assert parameters[start:stop].tobytes() == initial[start:stop].tobytes()
            # What comes next in backward, then in the next forward.
            assert held() <= set([*range(group, 8), *reversed(range(group))][:room])
            exchange.push(group)
            assert not parameters[start:stop].any()
        # A worker that left with frames under way would leave the other one waiting for them.
        for group in range(8):
            exchange.complete(group)
        # What the next forward begins with has come already; the last group's turn to be asked for is then.
        assert held() == set([7, *reversed(range(7))][1:room])

    exchange = {"plan": "per-layer", "zero": 3, "live_bytes": live_groups * 4096 * BYTES_PER_VALUE}
    with Cluster(make_job(2, 2, exchange=exchange)) as cluster:
        cluster.run(layout, work)


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_parameters_come_while_gradients_wait_for_the_other_worker(transport: str) -> None:
    layout = layout_of(*[4096] * 3)
    fetched = threading.Event()

    def work(member: Member) -> None:
        exchange = member.exchange
        for group in (2, 1, 0):
            exchange.wait(group)
        if member.rank == 1:
            assert fetched.wait(10)
        exchange.begin(1)
        for group in range(3):
            # Of group 0 three frames do not fit into the window; group 2 was dropped in forward.
            exchange.prepare(group)
            if group == 2:
                fetched.set()
            exchange.push(group)
            wait_for(lambda: member.links[0]._link.sent_bytes > 4096, "no frame was sent")
        for group in range(3):
            exchange.complete(group)

    exchange = {"plan": "per-layer", "zero": 3, "frame_bytes": 4096, "window_frames": 1, "transport": transport}
    with Cluster(make_job(1, 2, exchange=exchange)) as cluster:
        cluster.run(layout, work)


def test_frames_come_one_by_one_as_they_are_updated() -> None:
    layout = layout_of(4096)
    initial = initial_parameters(layout)
    first_came = threading.Event()

    def work(member: Member) -> None:
        exchange, arenas = member.exchange, member.arenas
        exchange.wait(0)
        exchange.begin(1)
        exchange.prepare(0)
        arenas.gradients[:] = 1.0
        if member.rank == 1:
            link = member.links[0]
            first, *rest = link.frames(0)
            assert len(rest) == 3
            exchange._protocol.ready(0)
            exchange._memory.drop(0)
            link._send(link._header(first), first.views(arenas.sent))
            assert first_came.wait(10)
            for frame in rest:
                link._send(link._header(frame), frame.views(arenas.sent))
        else:
            exchange.push(0)
            exchange._do(exchange._protocol.turn(Reading(0)))
            # SGD: rate 0.1, mean gradient 1.
            updated = initial[:1024] - np.float32(0.1)
            wait_for(lambda: np.allclose(arenas.parameters[:1024], updated), "the first frame did not come", 10)
            assert not arenas.parameters[1024:].any()
            first_came.set()
        exchange.complete(0)

    exchange = {"plan": "per-layer", "zero": 3, "frame_bytes": 4096}
    optimizer = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0}
    with Cluster(make_job(1, 2, exchange=exchange, optimizer=optimizer)) as cluster:
        cluster.run(layout, work)


@pytest.mark.parametrize(
    ("zero", "reason"), [(1, "asks for what zero 1 answers unasked"), (3, "after step 7: expected step 0")]
)
def test_a_worker_that_asks_for_what_is_not_there_is_refused(zero: int, reason: str) -> None:
    layout = layout_of(*LAYERS)
    reasons: list[str] = []

    def work(member: Member) -> None:
        member.exchange.begin(1)
        for link in member.links:
            link.ask(0, 7)
        with pytest.raises(TaihuError) as caught:
            member.exchange.complete(0)
        reasons.append(str(caught.value))

    with Cluster(make_job(1, 1, exchange={"plan": "per-layer", "zero": zero})) as cluster, suppress(TaihuError):
        cluster.run(layout, work)
    assert reason in reasons[0]
