"""Rounds of dense push and pull with the layer shapes of a model, without computing anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from taihu.coordination.client import CoordinatorClient, HeartbeatThread
from taihu.coordination.membership import MemberId, Progress, Role, RunState
from taihu.coordination.service import new_incarnation
from taihu.errors import ConfigError, RunError
from taihu.job import Job
from taihu.layout import Layout
from taihu.measure import spread
from taihu.wire.clock import SystemClock
from taihu.wire.identity import WorkerIdentity
from worker.hashing import parameters_sha256
from worker.server_exchange import ServerExchange
from worker.server_link import Arenas

__all__ = ["exchange_rounds"]


def exchange_rounds(job: Job, rank: int, layout: Layout, *, rounds: int, warmup: int) -> dict[str, Any]:
    """Exchange a gradient of `layout` `warmup + rounds` times; all workers of the job do so together.

    A round pushes every group in backward order and ends when every group has been pulled.
    """
    if job.cluster.coordinator is None:
        raise ConfigError("server address unknown: give --coordinator HOST:PORT of server 0")
    member, incarnation, clock = MemberId(Role.WORKER, rank), new_incarnation(), SystemClock()
    random = np.random.default_rng([job.train.seed, rank])
    arenas = Arenas(
        np.zeros(layout.elements, dtype=np.float32), random.standard_normal(layout.elements, dtype=np.float32)
    )
    with CoordinatorClient(job.cluster.coordinator, job, member, incarnation) as client:
        addresses = client.join(layout=layout)
        exchange = ServerExchange(
            job=job,
            plan=client.get_plan(job.cluster.connect_timeout_s),
            addresses=addresses,
            identity=WorkerIdentity(job.name, rank, incarnation),
            arenas=arenas,
            clock=clock,
        )

        def on_end(state: RunState, reason: str) -> None:
            if state is RunState.FAILED:
                exchange.fail(RunError(reason))

        with exchange, HeartbeatThread(client, job, Progress, on_end, clock):
            exchange.start()
            seconds = [_round(exchange, step, clock) for step in range(1, warmup + rounds + 1)][warmup:]
            totals = exchange.totals()
            client.finish(parameters_sha256=parameters_sha256(arenas.parameters))
    return {
        "seconds_per_round": spread(seconds),
        "bytes_sent_per_round": totals.sent_bytes // (warmup + rounds),
        "bytes_received_per_round": totals.received_bytes // (warmup + rounds),
        "groups": len(exchange.groups),
    }


def _round(exchange: ServerExchange, step: int, clock: SystemClock) -> float:
    start = clock.now()
    exchange.begin(step)
    for group in range(len(exchange.groups)):
        exchange.push(group)
    for group in range(len(exchange.groups)):
        exchange.wait(group)
    return clock.now() - start
