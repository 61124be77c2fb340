"""The life of a worker process: load, take part in one generation after another, and end with the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from threadpoolctl import threadpool_limits

from taihu.core.base.errors import ConfigError, RecoveringError
from taihu.core.base.words import counted
from taihu.core.chaos.points import Point
from taihu.core.coordination.client.client import coordinator_address
from taihu.core.coordination.generations import Generation, in_generations
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.job import Job
from taihu.core.job.machine import check_threads
from taihu.core.process.entry import LeavingError
from taihu.core.wire.base.address import host_of, is_loopback, split_address
from taihu.core.wire.serving.metrics import MetricsPage, RefusedCalls, WorkerMetrics
from taihu.core.wire.serving.server import RpcServer
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.load import load_dataset
from taihu.worker.opening import Who
from taihu.worker.options import WorkerOptions
from taihu.worker.part import participate, threads_of


class WorkerDaemon:
    """One worker process."""

    def __init__(self, job: Job, options: WorkerOptions) -> None:
        if not 0 <= options.rank < job.world.workers:
            raise ConfigError(
                f"worker {options.rank}: outside the world of {counted(job.world.workers, 'worker')}; expected "
                f"--rank 0 to {job.world.workers - 1}, or raise cluster.workers"
            )
        check_threads(job)
        if job.servers or options.rank:
            coordinator_address(job)  # says what is missing before the data is loaded
        self._job = job
        self._options = options
        self._log = structlog.get_logger().bind(role="worker", rank=options.rank)
        self._metrics = WorkerMetrics(options.rank, is_read=options.metrics_port is not None)
        self._stop = StopNotice()

    def run(self) -> dict[str, Any]:
        """Train to the end; returns this worker's results.

        Raises:
            TaihuError: what went wrong; the coordinator has been told.
        """
        self._options.chaos.passes(Point.START_UP)
        with ExitStack() as stack:
            if self._options.health is not None:
                self._options.health.start(())
                stack.callback(self._options.health.stop)
            elif self._options.listener is None:
                # No port tells of it but the page's.
                self._options.listen.health.serve()
            # The engine's own threads share out all products but those of sharded layers.
            stack.enter_context(threadpool_limits(1 if self._job.exchange.fc == "data" else threads_of(self._job)))
            page = None
            if self._options.metrics_port is not None:
                page = stack.enter_context(self._metrics_page(self._options.metrics_port))
                self._log.info("metrics", port=page.port)
            dataset = load_dataset(self._job.data, self._job.model.name)
            try:
                member = MemberId(Role.WORKER, self._options.rank)
                live = partial(self._live, dataset)
                return in_generations(self._job, member, live, self._between, agent=self._options.agent)
            finally:
                if page is not None:
                    page.lingers = not self._stop.expected

    def _live(self, dataset: Dataset, job: Job, generation: Generation) -> dict[str, Any]:
        wish, self._stop = self._stop.wish, StopNotice()
        if wish:
            self._stop.ask(wish)  # of a stop that was not made before a member was lost
        try:
            return participate(Who(job, self._options, generation, dataset, self._metrics, self._stop))
        except RecoveringError:
            if self._stop.leaves:
                raise LeavingError(self._stop.wish) from None
            self._listen_again()
            raise

    @contextmanager
    def _between(self) -> Iterator[RpcServer]:
        """A server at this worker's address, between two generations; without servers each has one."""
        listener = self._options.listener
        if listener is None:
            raise ConfigError("this worker does not listen, and hosts no coordinator")
        try:
            yield listener.rpc
        finally:
            self._listen_again()

    def _listen_again(self) -> None:
        if self._options.listener is not None:
            self._options.listener.close()
            self._options = replace(self._options, listener=self._options.listener.again())

    def _metrics_page(self, port: int) -> MetricsPage:
        listen = self._options.listen
        refusals = listen.security.refusals
        self._metrics.exported.put(RefusedCalls("worker", self._options.rank, refusals))
        host, linger_s = self._metrics_host, self._options.linger_s
        return MetricsPage(
            self._metrics.registry, port, host, linger_s=linger_s, health=listen.health, refusals=refusals
        )

    @property
    def _metrics_host(self) -> str:
        """That of `--bind`; without it this machine alone in a run of this machine, and every interface elsewhere."""
        bind, coordinator = self._options.listen.bind, self._job.cluster.coordinator
        if not bind and coordinator is not None and is_loopback(coordinator):
            return split_address(coordinator)[0]
        return host_of(bind)
