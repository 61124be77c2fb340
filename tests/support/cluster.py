"""Servers and exchanges of one job in this process, over real gRPC on free ports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np

from support.commands import PATIENCE_S
from support.worker import Values, Worker, first_parameters, initial_parameters
from taihu.core.base.errors import RunError, TaihuError
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.client.heartbeats import HeartbeatThread
from taihu.core.coordination.membership.members import Begun, MemberId, Progress, Role, RunState
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.recording import recorded_history
from taihu.core.job import Job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import group_bounds
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.core.settings import ClusterSettings
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.ps_server.daemon import ServerDaemon, ServerOptions
from taihu.worker.exchange.base.holding import Hold, hold_nothing
from taihu.worker.exchange.making import Beside, through_servers
from taihu.worker.exchange.servers.link import ServerLink
from taihu.worker.exchange.servers.route import ServerRoute
from taihu.worker.memory.arenas import Arenas, arenas_of

__all__ = [
    "Cluster",
    "Member",
    "Values",
    "initial_parameters",
    "layout_of",
    "make_job",
    "measured_step",
    "momentum_sgd",
]


def layout_of(*sizes: int) -> Layout:
    """Layers of these many values."""
    return Layout(tuple(LayerSpec(f"layer{i}", (TensorSpec("weight", (size,)),)) for i, size in enumerate(sizes)))


class Cluster:
    """`job`'s servers, each in a thread; a context manager. With `metrics_port` 0 each has a page of metrics."""

    def __init__(self, job: Job, *, metrics_port: int | None = None) -> None:
        self.job = job
        self._metrics_port = metrics_port
        self.outcomes: dict[int, TaihuError | None] = {}
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []
        self.servers: list[ServerDaemon] = []

    def __enter__(self) -> Self:
        for index in range(self.job.cluster.servers):
            server = self._stack.enter_context(ServerDaemon(self.job, self.options(index)))
            self.servers.append(server)
            if index == 0:
                cluster = self.job.cluster.model_copy(update={"coordinator": server.address})
                self.job = self.job.model_copy(update={"cluster": cluster})
            thread = threading.Thread(target=self._run, args=(index, server), name=f"server {index}")
            thread.start()
            self._threads.append(thread)
        return self

    def options(self, index: int) -> ServerOptions:
        """Those of a server."""
        return ServerOptions(index, bind="127.0.0.1:0", metrics_port=self._metrics_port)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.stop("the test is over")
        self.join()
        self._stack.close()

    def join(self) -> None:
        """Wait until every server has ended."""
        for thread in self._threads:
            thread.join(timeout=120)
            assert not thread.is_alive()

    def member(self, rank: int, layout: Layout, arenas: Arenas | None = None, hold: Hold = hold_nothing) -> Member:
        """Worker `rank`, joined; its arenas are shared if the job says so."""
        return Member(self.job, rank, layout, arenas, hold)

    def run(
        self,
        layout: Layout,
        work: Callable[[Member], None],
        arenas_of: Callable[[int], Arenas | None] = lambda _: None,
    ) -> None:
        """Let every worker, in a thread of its own, join, `work`, and finish."""

        def life(rank: int) -> None:
            with self.member(rank, layout, arenas_of(rank)) as member:
                member.exchange.start()
                work(member)
                member.client.finish(parameters_sha256="equal")

        with ThreadPoolExecutor(self.job.cluster.workers) as pool:
            for future in [pool.submit(life, rank) for rank in range(self.job.cluster.workers)]:
                future.result(timeout=120)

    def _run(self, index: int, server: ServerDaemon) -> None:
        try:
            server.run()
            self.outcomes[index] = None
        except TaihuError as error:
            self.outcomes[index] = error


class Member:
    """One worker: arenas, client, exchange and heartbeats; a context manager."""

    def __init__(
        self, job: Job, rank: int, layout: Layout, arenas: Arenas | None = None, hold: Hold = hold_nothing
    ) -> None:
        assert job.cluster.coordinator is not None
        self.rank = rank
        self.identity = WorkerIdentity(job.name, rank, 1000 + rank)
        self._stack = ExitStack()
        self.recorder = self._stack.enter_context(recorded_history(job, f"worker {rank}", 0))
        self.arenas = arenas or arenas_of(job, layout.elements)
        if rank == 0:
            self.arenas.parameters[:] = first_parameters(job, layout)
        member = MemberId(Role.WORKER, rank)
        self.client = CoordinatorClient.at(job.cluster.coordinator, job, member, self.identity.incarnation)
        begun = self.client.begin() if self.client.recovers else Begun(0)
        # Nobody calls it there: here workers meet servers alone.
        address = f"127.0.0.1:{rank + 1}" if job.workers_meet else ""
        addresses = self.client.join(address=address, layout=layout, begun=begun)
        self.addresses = addresses[: job.servers]
        self._made = threading.Event()
        # Kernels may have to be compiled behind this line, here and at the coordinator.
        self._heartbeats = HeartbeatThread(self.client, job, Progress, self._end).__enter__()
        try:
            self.plan = self.client.get_plan(PATIENCE_S)
            beside = Beside(recorder=self.recorder, on_failure=self.client.tell_of_loss, hold=hold)
            self.exchange = through_servers(job, self.plan, self.addresses, self.identity, self.arenas, beside)
        except BaseException:
            self._heartbeats.__exit__(None, None, None)
            raise
        self.worker = Worker(rank, self.exchange, self.arenas, self._change_plan)
        self._made.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exchange.__exit__(kind, value, trace)
        self._heartbeats.__exit__(kind, value, trace)
        self.client.__exit__(kind, value, trace)
        self._stack.close()
        if self.arenas.shared is not None:
            self.arenas.shared.unlink()  # of an exchange that has not begun

    @property
    def links(self) -> list[ServerLink]:
        """The links to the servers."""
        route = self.exchange._route
        assert isinstance(route, ServerRoute)
        return route._links

    def step(self, step: int, gradients: Values) -> Values:
        """Take a step of the worker, as `Worker.step`."""
        return self.worker.step(step, gradients)

    def _change_plan(self, step: int, strategy: str) -> None:
        """Report that messages cost so much, or so little, that the coordinator plans as few groups or as many."""
        message_s = {"single": 1.0, "per-layer": 0.0}[strategy]
        measured = [
            measured_step(self.exchange.plan, step - serial, message_s, serial=bool(serial)) for serial in (1, 0)
        ]
        self.exchange.adopt(self.client.report_steps(step, measured, PATIENCE_S))

    def _end(self, state: RunState, reason: str) -> None:
        if state is RunState.FAILED and self._made.wait(120):
            self.exchange.fail(RunError(reason))


def measured_step(
    plan: Plan, number: int, message_s: float, *, serial: bool, byte_s: float = 1e-6
) -> StepMeasurement:
    """A possible measurement of a worker where every message costs `message_s`, and every byte `byte_s`."""
    sizes = [4 * (stop - start) for start, stop in group_bounds(plan.layout, plan.groups)]
    times = [
        GroupMeasurement(size // 4, 0.0, False, size, size, message_s + byte_s * size, byte_s * size)
        for size in sizes
    ]
    return StepMeasurement(number, serial, 0.1, (0.01,) * len(plan.layout.layers), tuple(times))


def make_job(servers: int, workers: int, **sections: dict[str, object]) -> Job:
    """A job whose members are patient, as on a busy machine, over TCP unless `exchange` says otherwise."""
    cluster = ClusterSettings(
        servers=servers, workers=workers, heartbeat_s=0.1, lost_after_s=60.0, connect_timeout_s=60.0
    )
    exchange = {"transport": "tcp", **sections.get("exchange", {})}
    return Job.model_validate({"cluster": cluster.model_dump(), **sections, "exchange": exchange})


def momentum_sgd(start: Values, steps: Sequence[Sequence[Values]], rate: float, momentum: float) -> Values:
    """The parameters after `steps` (each the workers' gradients), in float64."""
    parameters, velocity = start.astype(np.float64), np.zeros(start.shape)
    for gradients in steps:
        velocity = momentum * velocity + np.mean([g.astype(np.float64) for g in gradients], axis=0)
        parameters -= rate * velocity
    return parameters.astype(np.float32)
