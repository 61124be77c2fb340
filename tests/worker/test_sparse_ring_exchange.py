"""Compressed gradients between workers without a server: the bits of the exchange through one, or nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.cluster import Cluster, Member, Values, initial_parameters, layout_of, make_job
from support.peers import Peers

from allreduce.communicator import Communicator
from taihu.coordination.planning import first_plan
from taihu.errors import TaihuError
from taihu.job import Job
from taihu.planner.groups import plan_groups
from taihu.planner.sparse_route import SPARSE_ROUTES, Route
from worker.exchange.making import between_workers
from worker.exchange.shell import Exchange
from worker.memory.arenas import Arenas, allocate_arenas

LAYOUT = layout_of(300, 7, 1, 1200, 64)
STEPS = 7
OPTIMIZERS = ({"momentum": 0.0}, {"momentum": 0.9, "weight_decay": 1e-3}, {"name": "adam"})


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def job_of(workers: int, kind: str, optimizer: dict[str, object], **compression: object) -> Job:
    plan = "single" if compression.get("method") == "topk" else "bucket:1kB"
    return make_job(
        1,
        workers,
        exchange={"kind": kind, "plan": plan},
        compression={"method": "dlgs", "density": 0.1, "refresh_every": 3, **compression},
        optimizer={"learning_rate": 0.1, **optimizer},
    )


def through_a_server(job: Job) -> bytes:
    ends: list[bytes] = []

    def work(member: Member) -> None:
        for step in range(1, STEPS + 1):
            end = member.step(step, gradients(member.rank, step))
        ends.append(end.tobytes())

    with Cluster(job) as cluster:
        cluster.run(LAYOUT, work)
    assert len(set(ends)) == 1
    return ends[0]


def exchange_of(job: Job, communicator: Communicator, route: Route) -> tuple[Exchange, Arenas]:
    """An exchange that has begun; its plan sends all groups by one route, in parts of 1000 elements at most."""
    arenas = allocate_arenas(LAYOUT.elements, shared=False)
    if communicator.rank == 0:
        arenas.parameters[:] = initial_parameters(LAYOUT)
    plan = first_plan(job, LAYOUT, one_host=False)
    plan = replace(plan, routes=(route,) * len(plan.groups), frame_elements=1000)
    exchange = between_workers(job, plan, communicator, arenas)
    exchange.start()
    return exchange, arenas


def run_step(exchange: Exchange, step: int) -> None:
    exchange.begin(step)
    for group in range(len(exchange.groups)):
        exchange.push(group)
    for group in range(len(exchange.groups)):
        exchange.wait(group)


def around_the_ring(job: Job, route: Route) -> list[bytes]:
    def work(communicator: Communicator) -> bytes:
        exchange, arenas = exchange_of(job, communicator, route)
        for step in range(1, STEPS + 1):
            arenas.gradients[:] = gradients(communicator.rank, step)
            run_step(exchange, step)
        exchange.close()
        return arenas.parameters.tobytes()

    with Peers(job.cluster.workers, mesh=True) as peers:
        return peers.run(work)


@pytest.mark.parametrize("route", [Route.ALLGATHER, Route.REDUCE_SCATTER])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("workers", "method"), [(1, "dlgs"), (2, "lags"), (3, "dlgs"), (4, "topk")])
def test_workers_end_with_the_bits_of_an_exchange_through_one_server(
    workers: int, method: str, optimizer: dict[str, object], route: Route
) -> None:
    ends = around_the_ring(job_of(workers, "ring", optimizer, method=method), route)
    assert set(ends) == {through_a_server(job_of(workers, "server", optimizer, method=method))}


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_what_a_tree_rejects_is_kept_for_later(workers: int) -> None:
    job = job_of(workers, "ring", {"momentum": 0.0}, downlink="doublesqueeze")

    def work(communicator: Communicator) -> tuple[Values, Values]:
        exchange, arenas = exchange_of(job, communicator, Route.GTOPK)
        for step in range(1, STEPS + 1):
            arenas.gradients[:] = gradients(communicator.rank, step)
            before = arenas.parameters.copy()
            run_step(exchange, step)
            for group in exchange.groups:
                start, stop = LAYOUT.offsets[group.first_layer], LAYOUT.offsets[group.last_layer + 1]
                changed = np.count_nonzero(arenas.parameters[start:stop] != before[start:stop])
                assert changed <= 0.1 * (stop - start) + 2  # ceil, in each of at most two parts
        exchange.close()
        return arenas.parameters, exchange.residual

    with Peers(workers, mesh=True) as peers:
        results = peers.run(work)
    assert len({parameters.tobytes() for parameters, _ in results}) == 1
    applied = (initial_parameters(LAYOUT) - results[0][0]).astype(np.float64) / 0.1 * workers
    held_back = np.sum([residual for _, residual in results], axis=0, dtype=np.float64)
    everything = np.sum([gradients(rank, step) for rank in range(workers) for step in range(1, STEPS + 1)], axis=0)
    np.testing.assert_allclose(applied + held_back, everything, rtol=0, atol=2e-4)


def test_a_plan_with_other_groups_and_routes_is_adopted_between_steps() -> None:
    job = job_of(3, "ring", {"momentum": 0.9})

    def work(communicator: Communicator) -> bytes:
        exchange, arenas = exchange_of(job, communicator, Route.ALLGATHER)
        for step in range(1, STEPS + 1):
            arenas.gradients[:] = gradients(communicator.rank, step)
            run_step(exchange, step)
            if step == 3:
                groups = plan_groups(LAYOUT, "per-layer")
                routes = (Route.REDUCE_SCATTER,) * len(groups)
                exchange.adopt(replace(exchange.plan, version=2, groups=groups, routes=routes))
        times = exchange.group_times()
        assert len(times) == len(LAYOUT.layers)
        assert all(0 < each.selected <= each.elements and each.ready_s <= each.answered_s for each in times)
        assert 0 < sum(each.bytes_up for each in times) < exchange.totals().sent_bytes
        exchange.close()
        return arenas.parameters.tobytes()

    with Peers(3, mesh=True) as peers:
        assert len(set(peers.run(work))) == 1


def test_a_gradient_that_is_not_finite_ends_the_exchange_of_all() -> None:
    job = job_of(3, "ring", {})

    def work(communicator: Communicator) -> str:
        exchange, arenas = exchange_of(job, communicator, Route.ALLGATHER)
        arenas.gradients[:] = 1
        if communicator.rank == 1:
            arenas.gradients[5] = np.inf
        try:
            run_step(exchange, 1)
        except TaihuError as error:
            return str(error)
        finally:
            exchange.close()
        return "done"

    with Peers(3, mesh=True) as peers:
        for result in peers.run(work):
            assert "of step 1: the sum of all gradients is not finite" in result


@pytest.mark.parametrize(
    ("workers", "density", "downlink", "expected"),
    [
        (2, 0.01, "auto", Route.ALLGATHER),
        (32, 0.3, "auto", Route.REDUCE_SCATTER),
        (32, 0.01, "doublesqueeze", Route.GTOPK),
    ],
)
def test_the_first_plan_takes_the_route_of_the_fewest_bytes(
    workers: int, density: float, downlink: str, expected: Route
) -> None:
    job = job_of(workers, "ring", {"momentum": 0.0}, density=density, downlink=downlink)
    plan = first_plan(job, LAYOUT, one_host=False)
    assert set(plan.routes) == {expected}
    assert expected in SPARSE_ROUTES
    assert first_plan(job_of(workers, "server", {"momentum": 0.0}), LAYOUT, one_host=False).routes == ()
