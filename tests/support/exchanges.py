"""Whole exchanges in this process, the workers of a job each in a thread: the one factory of the tests.

The job says of which kind they are: through servers or between workers, dense, sharded (ZeRO) or sparse (compressed),
over which transport, in which precision. All go over real connections on free ports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from support.cluster import Cluster
from support.peers import Peers
from support.worker import Values, Worker, first_parameters
from taihu.allreduce.communicator import Communicator
from taihu.core.base.errors import TaihuError
from taihu.core.coordination.client.client import failure_reported
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.history.checking import check_histories
from taihu.core.history.files import read_histories
from taihu.core.history.recording import recorded_history
from taihu.core.history.records import End
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import cap_groups, plan_groups
from taihu.core.wire.frames.headers import BYTES_PER_VALUE
from taihu.worker.exchange.base.holding import Hold, hold_nothing
from taihu.worker.exchange.base.route import ExchangeTotals
from taihu.worker.exchange.making import Beside, between_workers
from taihu.worker.exchange.ring.dense import RingRoute
from taihu.worker.exchange.ring.sparse import SparseRoute
from taihu.worker.exchange.servers.route import ServerRoute
from taihu.worker.exchange.shell import Exchange
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.memory.arenas import Arenas, arenas_of
from taihu.worker.training.step_driver import StepDriver

__all__ = ["Holds", "Run", "exchange_steps", "regrouped", "run_workers", "settle", "take_step", "try_workers"]

T = TypeVar("T")

OwnArenas = Callable[[int], Arenas | None]
Holds = Callable[[int], Hold]
"""Of a rank, what holds its steps."""


def hold_nowhere(rank: int) -> Hold:
    """Nobody holds anything."""
    return hold_nothing


@dataclass(frozen=True)
class Run:
    """The outcome of steps; lists of steps hold a list of ranks each.

    Attributes:
        parameters: what was read after each step.
        times: when groups were sent and answered.
        totals: bytes so far, after the forward behind each step.
        groups: how many groups each step had, which is the same for all.
        path: how values travelled, by rank.
        scales: loss scale and number of skipped steps at the end, by rank.
    """

    parameters: list[list[Values]]
    times: list[list[list[GroupTimes]]]
    totals: list[list[ExchangeTotals]]
    groups: list[int]
    path: list[str]
    scales: list[tuple[float, int]]

    @property
    def ends(self) -> set[bytes]:
        """The parameters that workers read last: of one kind, if they agree to the bit."""
        return {values.tobytes() for values in self.parameters[-1]}


def exchange_steps(
    job: Job,
    layout: Layout,
    gradients: Callable[[int, int], Values],
    *,
    steps: int = 4,
    plan: Plan | None = None,
    plans: Mapping[int, str] | None = None,
    order: Callable[[int], Sequence[int]] = range,
    before: Callable[[Worker], None] = lambda _: None,
) -> Run:
    """Exchange `gradients(rank, step)`, shape (layout.elements,), in steps from 1 on; everything is read in between.

    `plan` is where a ring begins, if not with the job's own; after the steps in `plans` all go on by the groups that
    a strategy makes. `order(n)` is the order in which n groups are pushed. That backward sees the parameters which
    forward saw is checked on the way, and what all recorded at the end. `before` is what workers do before the first
    step, when parameters are there.

    Raises:
        TaihuError: what a worker ended with.
    """

    def work(worker: Worker) -> _Seen:
        seen = _Seen([], [], [], [], worker.exchange.path)
        before(worker)
        known = worker.read()
        for step in range(1, steps + 1):
            worker.backward(step, gradients(worker.rank, step), order=order, known=known)
            known = worker.read()
            seen.parameters.append(known)
            worker.complete()
            seen.times.append([replace(times) for times in worker.exchange.group_times()])
            seen.totals.append(worker.exchange.totals())
            seen.groups.append(len(worker.exchange.plan.groups))
            seen.scale = worker.exchange.loss_scale, worker.exchange.skipped_steps
            if plans is not None and step in plans:
                worker.change_plan(step, plans[step])
        return seen

    with TemporaryDirectory() as folder:
        history = job.run.model_copy(update={"history": Path(folder)})
        seen = run_workers(job.model_copy(update={"run": history}), layout, work, plan=plan)
        verdict = check_histories(read_histories(Path(folder)))
    assert [str(finding) for finding in verdict.findings] == []
    assert (verdict.last, verdict.has_ended) == (steps, True)
    return Run(
        parameters=[list(each) for each in zip(*(one.parameters for one in seen), strict=True)],
        times=[list(each) for each in zip(*(one.times for one in seen), strict=True)],
        totals=[list(each) for each in zip(*(one.totals for one in seen), strict=True)],
        groups=seen[0].groups,
        path=[one.path for one in seen],
        scales=[one.scale for one in seen],
    )


@dataclass
class _Seen:
    parameters: list[Values]
    times: list[list[GroupTimes]]
    totals: list[ExchangeTotals]
    groups: list[int]
    path: str
    scale: tuple[float, int] = (1.0, 0)


def run_workers(
    job: Job,
    layout: Layout,
    work: Callable[[Worker], T],
    *,
    plan: Plan | None = None,
    own_arenas: OwnArenas = lambda _: None,
    holds: Holds = hold_nowhere,
) -> list[T]:
    """Let every worker start its exchange, `work`, and leave in good order; returns what came of it, by rank.

    Worker 0 brings `first_parameters`. `own_arenas(rank)` are a worker's, if not those of the job; `holds(rank)`
    makes what holds its steps.

    Raises:
        TaihuError: what the first worker of those that failed ended with.
    """
    results: list[T] = []
    for outcome in try_workers(job, layout, work, plan=plan, own_arenas=own_arenas, holds=holds):
        if isinstance(outcome, TaihuError):
            raise outcome
        results.append(outcome)
    return results


def try_workers(
    job: Job,
    layout: Layout,
    work: Callable[[Worker], T],
    *,
    plan: Plan | None = None,
    own_arenas: OwnArenas = lambda _: None,
    holds: Holds = hold_nowhere,
) -> list[T | TaihuError]:
    """As `run_workers`, with what a worker ended with in place of what came of it, where it failed.

    Who fails tells the others, as a daemon does.
    """
    if job.servers:
        return _through_servers(job, layout, work, own_arenas, holds)
    plan = plan or first_plan(job, layout, one_host=False)
    return _between_workers(job, plan, work, own_arenas, holds)


def take_step(driver: StepDriver, worker: Worker, step: int, gradients: Values | None = None) -> None:
    """Read all layers, and bring `gradients`, or the number of the step for every one, layer by layer."""
    layout = worker.exchange.steps.plan.layout
    layers = range(len(layout.layers))
    for layer in reversed(layers):
        driver.read(layer)
    driver.begin(step)
    for layer in layers:
        driver.prepare(layer)
        place = slice(layout.offsets[layer], layout.offsets[layer + 1])
        worker.arenas.gradients[place] = step if gradients is None else gradients[place]
        driver.ready(layer)
    driver.end_backward()


def settle(exchange: Exchange) -> None:
    """Wait until it is known of every link whether there is a connection beside gRPC."""
    route = exchange._route
    if isinstance(route, ServerRoute):
        for end in route._ends:
            end._way.settle()
    elif isinstance(route, RingRoute | SparseRoute):
        for peer in route._communicator._links.values():
            peer.settle()


def _through_servers(
    job: Job, layout: Layout, work: Callable[[Worker], T], own_arenas: OwnArenas, holds: Holds
) -> list[T | TaihuError]:
    def life(rank: int) -> T | TaihuError:
        try:
            made = cluster.member(rank, layout, own_arenas(rank), holds(rank))
            with made as member, failure_reported(member.client):
                member.exchange.start()
                result = work(member.worker)
                member.client.finish(parameters_sha256="equal")
                member.recorder.add(End(member.exchange._protocol.at.step))
            return result
        except TaihuError as error:
            return error

    # The servers end first, and with them what workers may still wait for.
    with ThreadPoolExecutor(job.cluster.workers) as pool, Cluster(job) as cluster:
        futures = [pool.submit(life, rank) for rank in range(job.cluster.workers)]
        results = [future.result(timeout=120) for future in futures]
        cluster.join()
    if not any(isinstance(result, TaihuError) for result in results):
        assert cluster.outcomes == dict.fromkeys(range(job.servers))
    return results


def _between_workers(
    job: Job, plan: Plan, work: Callable[[Worker], T], own_arenas: OwnArenas, holds: Holds
) -> list[T | TaihuError]:
    def life(communicator: Communicator) -> T | TaihuError:
        arenas = own_arenas(communicator.rank) or arenas_of(job, plan.layout.elements)
        name = f"worker {communicator.rank}"
        with recorded_history(job, name, 0) as recorder:
            exchange = between_workers(
                job, plan, communicator, arenas, Beside(recorder=recorder, hold=holds(communicator.rank))
            )
            outcome = live(communicator, arenas, exchange)
            if not isinstance(outcome, TaihuError):
                recorder.add(End(exchange._protocol.at.step))
            return outcome

    def live(communicator: Communicator, arenas: Arenas, exchange: Exchange) -> T | TaihuError:
        def change_plan(_: int, strategy: str) -> None:
            exchange.adopt(regrouped(job, exchange.plan, strategy))

        try:
            with communicator, exchange:
                if communicator.rank == 0:
                    arenas.parameters[:] = first_parameters(job, plan.layout)
                exchange.start()
                return work(Worker(communicator.rank, exchange, arenas, change_plan))
        except TaihuError as error:
            return error

    is_direct = job.exchange.transport != "grpc"
    is_mesh = job.compression.method.key != "none"
    size, timeout_s = job.cluster.workers, job.exchange.timeout_s
    with Peers(size, timeout_s=timeout_s, direct=is_direct, mesh=is_mesh) as peers:
        return peers.run(life)


def regrouped(job: Job, plan: Plan, strategy: str) -> Plan:
    """The plan behind `plan`, with the groups of `strategy`; where gradients are compressed all go the same way."""
    groups = plan_groups(plan.layout, strategy)
    if job.stage.key >= 2:
        groups = cap_groups(groups, plan.layout, job.bucket_bytes(plan.layout.elements) // BYTES_PER_VALUE)
    routes = plan.routes[:1] * len(groups)
    return replace(plan, version=plan.version + 1, groups=groups, routes=routes)
