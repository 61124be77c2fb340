"""The exchange around a ring: what every `Exchange` must do, without a server."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import Values, initial_parameters, layout_of, make_job, momentum_sgd
from support.peers import Peers

from allreduce.communicator import Communicator
from taihu.coordination.plan import Plan
from taihu.errors import ConfigError, FrameError, TaihuError
from taihu.job import Job
from taihu.planner.groups import plan_groups
from worker.exchange.making import between_workers
from worker.exchange.shell import Exchange
from worker.memory.arenas import allocate_arenas

LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2)


def ring_job(workers: int, **exchange: object) -> Job:
    return make_job(1, workers, exchange={"kind": "ring", "transport": "tcp", **exchange})


def plan_of(strategy: str, version: int = 1) -> Plan:
    return Plan(version, 1, plan_groups(LAYOUT, strategy), LAYOUT, 1000)


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def started(job: Job, communicator: Communicator, plan: Plan) -> tuple[Exchange, NDArray[np.float32], Values]:
    """An exchange that has begun, and its arenas."""
    arenas = allocate_arenas(LAYOUT.elements, shared=job.exchange.transport != "tcp")
    if communicator.rank == 0:
        arenas.parameters[:] = initial_parameters(LAYOUT)
    exchange = between_workers(job, plan, communicator, arenas)
    exchange.start()
    assert arenas.parameters.tobytes() == initial_parameters(LAYOUT).tobytes()
    return exchange, arenas.parameters, arenas.gradients


def run_step(exchange: Exchange, step: int) -> None:
    exchange.begin(step)
    groups = range(len(exchange.groups))
    for group in groups:
        exchange.push(group)
    for group in groups:
        exchange.wait(group)


@pytest.mark.parametrize("path", ["tcp", "auto"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_all_workers_hold_the_bits_of_the_mean_update_whatever_the_plan(workers: int, path: str) -> None:
    job = ring_job(workers, transport=path)

    def work(communicator: Communicator) -> list[bytes]:
        ends = []
        for strategy in ("single", "per-layer", "bucket:5kB"):
            exchange, parameters, own = started(job, communicator, plan_of(strategy))
            for step in range(1, 5):
                own[:] = gradients(communicator.rank, step)
                run_step(exchange, step)
            ends.append(parameters.tobytes())
            if path == "auto":
                break  # a communicator shares memory once
        return ends

    with Peers(workers) as peers:
        results = peers.run(work)
    assert len({end for ends in results for end in ends}) == 1
    steps = [[gradients(rank, step) for rank in range(workers)] for step in range(1, 5)]
    expected = momentum_sgd(initial_parameters(LAYOUT), steps, rate=0.05, momentum=0.9)
    np.testing.assert_allclose(np.frombuffer(results[0][0], dtype=np.float32), expected, rtol=1e-5, atol=1e-6)


def test_a_plan_is_adopted_between_steps_and_changes_no_bit() -> None:
    job = ring_job(3)

    def work(communicator: Communicator) -> bytes:
        exchange, parameters, own = started(job, communicator, plan_of("single"))
        for step in range(1, 5):
            own[:] = gradients(communicator.rank, step)
            run_step(exchange, step)
            if step == 2 and communicator.rank < 3:
                exchange.adopt(plan_of("per-layer", 2))
                assert len(exchange.groups) == len(LAYOUT.layers)
        return parameters.tobytes()

    def reference(communicator: Communicator) -> bytes:
        exchange, parameters, own = started(job, communicator, plan_of("bucket:5kB"))
        for step in range(1, 5):
            own[:] = gradients(communicator.rank, step)
            run_step(exchange, step)
        return parameters.tobytes()

    with Peers(3) as peers:
        changed = peers.run(work)
    with Peers(3) as peers:
        assert {*changed, *peers.run(reference)} == {changed[0]}


def test_groups_come_back_while_others_have_not_been_pushed() -> None:
    job = ring_job(2)

    def work(communicator: Communicator) -> None:
        exchange, parameters, own = started(job, communicator, plan_of("per-layer"))
        before = parameters.copy()
        own[:] = 1
        exchange.begin(1)
        for group in range(len(LAYOUT.layers)):
            exchange.push(group)
            exchange.wait(group)
            stop = LAYOUT.offsets[group + 1]
            assert (parameters[:stop] < before[:stop]).all()
            assert (parameters[stop:] == before[stop:]).all()

    with Peers(2) as peers:
        peers.run(work)


def test_times_and_bytes_are_told_of_every_group() -> None:
    job = ring_job(2)

    def work(communicator: Communicator) -> None:
        exchange, _, own = started(job, communicator, plan_of("per-layer"))
        own[:] = 1
        run_step(exchange, 1)
        for times, layer in zip(exchange.group_times(), LAYOUT.layers, strict=True):
            assert times.elements == times.selected == layer.elements
            assert times.ready_s <= times.submitted_s <= times.completed_s == times.answered_s
            # Two ranks: what one sends is one chunk twice, up to the odd value.
            assert abs(times.bytes_up - 4 * layer.elements) <= 4
        assert exchange.totals().sent_bytes > 4 * LAYOUT.elements

    with Peers(2) as peers:
        peers.run(work)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_ends_the_exchange_of_all(value: float) -> None:
    job = ring_job(3)

    def work(communicator: Communicator) -> str:
        exchange, _, own = started(job, communicator, plan_of("single"))
        own[:] = 0
        if communicator.rank == 1:
            own[100] = value
        try:
            run_step(exchange, 1)
        except TaihuError as error:
            return str(error)
        return "done"

    with Peers(3) as peers:
        for result in peers.run(work):
            assert "group 0 of step 1: the sum of all gradients is not finite" in result


def test_values_that_are_not_finite_pass_where_they_are_allowed() -> None:
    job = ring_job(2, non_finite="allow")

    def work(communicator: Communicator) -> bool:
        exchange, parameters, own = started(job, communicator, plan_of("single"))
        own[:] = np.nan
        run_step(exchange, 1)
        return bool(np.isnan(parameters).all())

    with Peers(2) as peers:
        assert peers.run(work) == [True, True]


def test_same_host_is_refused_where_memory_is_not_shared() -> None:
    job = ring_job(2, transport="same-host")

    def work(communicator: Communicator) -> str:
        arenas = allocate_arenas(LAYOUT.elements, shared=communicator.rank == 0)
        exchange = between_workers(job, plan_of("single"), communicator, arenas)
        with pytest.raises(ConfigError, match=r"exchange\.transport 'same-host'") as caught:
            exchange.start()
        return str(caught.value)

    with Peers(2) as peers:
        peers.run(work)


def test_what_fails_the_exchange_is_what_a_wait_raises() -> None:
    job = ring_job(2)
    stepped = threading.Barrier(2)

    def work(communicator: Communicator) -> str:
        exchange, _, _ = started(job, communicator, plan_of("single"))
        run_step(exchange, 1)
        stepped.wait(timeout=20)
        if communicator.rank == 0:
            exchange.fail(FrameError("out of paper"))
        try:
            run_step(exchange, 2)
        except TaihuError as error:
            return str(error)
        return "done"

    with Peers(2) as peers:
        assert peers.run(work) == ["out of paper", "out of paper"]
