"""Bytes that a step moves: the volumes of the papers, less what stays."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from support.cluster import layout_of, make_job
from support.exchanges import exchange_steps, run_workers
from support.worker import Worker

from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.wire.frames.headers import BYTES_PER_VALUE

SERVERS = layout_of(*[8000] * 40)
RING = layout_of(*[12000] * 40)


def moved_in_a_step(job: Job, layout: Layout) -> float:
    """Bytes that all workers send and receive, from the end of a forward to that of a later one."""

    arrived = threading.Barrier(job.cluster.workers)

    def work(worker: Worker) -> int:
        exchange, moved = worker.exchange, []
        for step in (1, 2, 3):
            for group in reversed(range(len(exchange.plan.groups))):
                exchange.wait(group)
            # What all have read has been sent and received; what is fetched ahead counts once.
            arrived.wait(120)
            totals = exchange.totals()
            moved.append(totals.sent_bytes + totals.received_bytes)
            # Nobody sends before all have counted.
            arrived.wait(120)
            exchange.begin(step)
            for group in range(len(exchange.plan.groups)):
                exchange.prepare(group)
                exchange.push(group)
        worker.complete()
        return moved[-1] - moved[0]

    return sum(run_workers(job, layout, work)) / 2


@pytest.mark.parametrize(
    ("precision", "zero", "live", "volume"),
    [
        ("fp32", 0, 0, 2),
        ("fp32", 1, 0, 2),
        ("fp32", 2, 0, 2),
        ("fp32", 3, 0, 3),
        ("fp32", 3, 0.5, 2.5),
        ("fp32", 3, 1, 2),
        ("bf16", 2, 0, 1),
        ("bf16", 3, 0, 1.5),
    ],
)
def test_a_step_through_servers_moves_gradients_and_parameters(
    precision: str, zero: int, live: float, volume: float
) -> None:
    live_bytes = int(live * SERVERS.elements * BYTES_PER_VALUE)
    exchange = {"plan": "per-layer", "zero": zero, "live_bytes": live_bytes}
    job = make_job(2, 1, exchange=exchange, train={"precision": precision})
    assert moved_in_a_step(job, SERVERS) == pytest.approx(volume * SERVERS.elements * BYTES_PER_VALUE, rel=0.03)


@pytest.mark.parametrize(("zero", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_a_step_around_a_ring_reduces_and_gathers(zero: int, volume: int) -> None:
    """Every worker sends and receives (N - 1) / N of the elements in each reduce-scatter and allgather."""
    job = make_job(1, 3, exchange={"kind": "ring", "plan": "per-layer", "zero": zero})
    expected = volume * 2 / 3 * RING.elements * BYTES_PER_VALUE * 3 * 2
    assert moved_in_a_step(job, RING) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("transport", ["tcp", "same-host", "grpc"])
def test_bytes_through_servers_are_counted_with_their_headers(transport: str) -> None:
    layout = layout_of(1, 700, 3, 4096, 2500, 2)
    job = make_job(2, 1, exchange={"transport": transport})
    run = exchange_steps(job, layout, lambda *_: np.ones(layout.elements, dtype=np.float32), steps=1)
    totals, times = run.totals[0][0], run.times[0][0]
    payload = layout.elements * 4
    assert payload < totals.sent_bytes < payload + 2000
    assert payload < totals.received_bytes < payload + 2000
    assert sum(group.bytes_up for group in times) == totals.sent_bytes
    assert sum(group.bytes_down for group in times) == totals.received_bytes


def test_parameters_that_stay_are_not_fetched_again_by_another_plan() -> None:
    layout = layout_of(1, 700, 3, 4096, 2500, 2, 3000)

    def work(worker: Worker) -> list[int]:
        received = []
        for step in range(1, 5):
            worker.step(step, np.ones(layout.elements, dtype=np.float32))
            if step == 2:
                worker.exchange.adopt(replace(worker.exchange.plan, predicted_seconds=1.0))
            received.append(worker.exchange.totals().received_bytes)
        return received

    job = make_job(2, 1, exchange={"plan": "per-layer", "zero": 2}, train={"precision": "bf16"})
    by_step = np.diff(run_workers(job, layout, work)[0])
    assert by_step[0] == by_step[1] == by_step[2]
