"""ZeRO on a ring: the bits of a ring without it, for every stage, plan and number of workers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.cluster import Values, initial_parameters, layout_of, make_job
from support.peers import Peers

from allreduce.communicator import Communicator
from taihu.coordination.plan import Plan
from taihu.errors import TaihuError
from taihu.job import Job
from taihu.planner.groups import cap_groups, group_bounds, plan_groups
from worker.exchange.making import between_workers
from worker.exchange.shell import Exchange
from worker.exchange.step_protocol import Place
from worker.memory.arenas import Arenas, arenas_of
from worker.training.hashing import exchanged_sha256, parameters_sha256

LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2, 9000)
STEPS = range(1, 5)


def ring_job(workers: int, zero: int, **exchange: object) -> Job:
    return make_job(
        1,
        workers,
        exchange={"kind": "ring", "zero": zero, "bucket_bytes": 20000, **exchange},
        optimizer={"name": "adam", "learning_rate": 0.01},
    )


def plan_of(strategy: str, zero: int, version: int = 1) -> Plan:
    groups = plan_groups(LAYOUT, strategy)
    return Plan(version, 1, cap_groups(groups, LAYOUT, 5000) if zero >= 2 else groups, LAYOUT, 1000)


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def started(job: Job, communicator: Communicator, plan: Plan) -> tuple[Exchange, Arenas]:
    arenas = arenas_of(job, plan.layout.elements)
    if communicator.rank == 0:
        arenas.parameters[:] = initial_parameters(plan.layout)
    exchange = between_workers(job, plan, communicator, arenas)
    exchange.start()
    return exchange, arenas


def run_step(exchange: Exchange, arenas: Arenas, step: int, own: Values) -> None:
    """A forward that reads everything, and a backward that reads it again."""
    bounds = group_bounds(exchange.plan.layout, exchange.groups)
    before = {}
    for group in reversed(range(len(bounds))):
        exchange.wait(group)
        before[group] = arenas.parameters[slice(*bounds[group])].tobytes()
    exchange.begin(step)
    for group, (start, stop) in enumerate(bounds):
        exchange.prepare(group)
        assert arenas.parameters[start:stop].tobytes() == before[group]
        arenas.gradients[start:stop] = own[start:stop]
        exchange.push(group)
    for group in range(len(bounds)):
        exchange.complete(group)


def end_of(exchange: Exchange, arenas: Arenas) -> str:
    """A hash of all parameters."""
    digest = exchanged_sha256(exchange, arenas.parameters)
    assert arenas.parameter_pages is not None or parameters_sha256(arenas.parameters) == digest
    return digest


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_every_stage_ends_with_the_same_bits_whatever_the_plan(workers: int) -> None:
    def work(communicator: Communicator) -> list[str]:
        ends = []
        for zero, live_bytes in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 50000)):
            for strategy in ("single", "per-layer", "bucket:5kB"):
                job = ring_job(workers, zero, live_bytes=live_bytes)
                exchange, arenas = started(job, communicator, plan_of(strategy, zero))
                for step in STEPS:
                    run_step(exchange, arenas, step, gradients(communicator.rank, step))
                ends.append(end_of(exchange, arenas))
        return ends

    with Peers(workers) as peers:
        results = peers.run(work)
    assert len({end for ends in results for end in ends}) == 1


@pytest.mark.parametrize(("zero", "live_bytes"), [(1, 0), (2, 0), (3, 0), (3, 50000)])
def test_a_plan_is_adopted_between_steps_and_changes_no_bit(zero: int, live_bytes: int) -> None:
    def work(communicator: Communicator) -> set[str]:
        ends = set()
        for change in (False, True):
            job = ring_job(3, zero, live_bytes=live_bytes)
            exchange, arenas = started(job, communicator, plan_of("per-layer", zero))
            for step in STEPS:
                run_step(exchange, arenas, step, gradients(communicator.rank, step))
                if change and step == 2:
                    exchange.adopt(plan_of("bucket:5kB", zero, version=2))
            ends.add(end_of(exchange, arenas))
        return ends

    with Peers(3) as peers:
        assert len(set.union(*peers.run(work))) == 1


@pytest.mark.parametrize(("zero", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_the_volume_of_a_step_is_that_of_the_paper(zero: int, volume: int) -> None:
    """Every worker sends and receives (N - 1) / N of the elements in each reduce-scatter and allgather."""

    layout = layout_of(*[30000] * 40)

    def work(communicator: Communicator) -> list[int]:
        plan = Plan(1, 1, plan_groups(layout, "per-layer"), layout, 1000)
        exchange, arenas = started(ring_job(3, zero), communicator, plan)
        counts = []
        for step in STEPS:
            run_step(exchange, arenas, step, np.ones(layout.elements, dtype=np.float32))
            counts.append(exchange.totals().sent_bytes)
        return counts

    with Peers(3) as peers:
        results = peers.run(work)
    moved = sum(counts[-1] - counts[0] for counts in results) / len(STEPS[1:])
    assert moved == pytest.approx(volume * 2 / 3 * layout.elements * 4 * 3, rel=0.03)


def test_what_is_wanted_before_it_is_summed_is_gathered_after() -> None:
    wanted = threading.Event()

    def work(communicator: Communicator) -> str:
        exchange, arenas = started(ring_job(2, 3, live_bytes=100000), communicator, plan_of("per-layer", 3))
        bounds = group_bounds(exchange.plan.layout, exchange.groups)
        for group in reversed(range(len(bounds))):
            exchange.wait(group)
        exchange.begin(1)
        for group, (start, stop) in enumerate(bounds):
            if communicator.rank == 1 and group == 0:
                assert wanted.wait(10)
            exchange.prepare(group)
            if communicator.rank == 0 and group == 1:
                # Its sum waits for the other worker, who waits for this one to want it.
                assert exchange._protocol._groups[0].place is Place.WANTED
                wanted.set()
            arenas.gradients[start:stop] = gradients(communicator.rank, 1)[start:stop]
            exchange.push(group)
        for group in range(len(bounds) - 1):
            exchange.complete(group)
            assert arenas.parameters[slice(*bounds[group])].any()
        exchange.complete(len(bounds) - 1)
        return end_of(exchange, arenas)

    def plainly(communicator: Communicator) -> str:
        exchange, arenas = started(ring_job(2, 0), communicator, plan_of("per-layer", 0))
        run_step(exchange, arenas, 1, gradients(communicator.rank, 1))
        return end_of(exchange, arenas)

    with Peers(2) as peers:
        assert len({*peers.run(work), *peers.run(plainly)}) == 1


def test_the_first_forward_may_be_of_other_groups_than_were_expected() -> None:
    """A test between steps reads forward several times; who asks for what must not depend on when it comes."""

    def work(communicator: Communicator) -> str:
        exchange, arenas = started(ring_job(3, 3), communicator, plan_of("per-layer", 3))
        count = len(exchange.groups)
        for _ in range(3):
            for group in reversed(range(count)):
                exchange.wait(group)
        for group in (0, 3, 1, 6, 2, 5):
            exchange.recall(group)
        run_step(exchange, arenas, 1, gradients(communicator.rank, 1))
        return end_of(exchange, arenas)

    with Peers(3) as peers:
        assert len(set(peers.run(work))) == 1


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_gradient_that_is_not_finite_ends_the_exchange_of_all(zero: int) -> None:
    def work(communicator: Communicator) -> str:
        exchange, arenas = started(ring_job(3, zero), communicator, plan_of("single", zero))
        own = gradients(communicator.rank, 1)
        if communicator.rank == 1:
            own[1234] = np.nan
        with pytest.raises(TaihuError) as caught:
            run_step(exchange, arenas, 1, own)
        return str(caught.value)

    with Peers(3) as peers:
        reasons = peers.run(work)
    assert all("not finite" in reason for reason in reasons)


def test_flags_are_those_of_worker_0_where_parameters_are_gathered() -> None:
    def work(communicator: Communicator) -> list[list[float]]:
        flags = []
        for zero in (0, 3):
            exchange, _ = started(ring_job(2, zero), communicator, plan_of("single", zero))
            own = np.array([1.0, 0.0]) if communicator.rank == 0 else np.array([0.0, 1.0])
            exchange.agree(own)
            flags.append(own.tolist())
        return flags

    with Peers(2) as peers:
        assert peers.run(work) == [[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]]
