"""A worker's part in a run: joined, its exchange open, its heartbeats sent, and its failure reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from allreduce.rendezvous import Listener, ListenOptions, listen_for_peers, meet
from taihu.compression import UnitReport
from taihu.coordination.client import (
    CoordinatorClient,
    HeartbeatThread,
    coordinator_address,
    failure_reported,
)
from taihu.coordination.membership import MemberId, Progress, Role, RunState
from taihu.coordination.service import new_incarnation
from taihu.errors import RunError
from taihu.job import Job
from taihu.layout import Layout
from taihu.trace import Tracer
from taihu.wire.identity import WorkerIdentity
from worker.arenas import Arenas
from worker.exchange import GradientExchange
from worker.ring_exchange import RingExchange
from worker.server_exchange import ServerExchange
from worker.sparse_ring_exchange import SparseRingExchange

__all__ = ["Session", "take_part"]


@dataclass(frozen=True)
class Session:
    """What a worker that takes part has; the parameter arena holds the job's initial parameters."""

    client: CoordinatorClient
    exchange: GradientExchange


@contextmanager
def take_part(
    job: Job,
    rank: int,
    layout: Layout,
    arenas: Arenas,
    *,
    progress: Callable[[], Progress],
    on_compressed: Callable[[UnitReport], None] = lambda _: None,
    tracer: Tracer | None = None,
    listener: Listener | None = None,
) -> Iterator[Session]:
    """Take part in `job`'s run as worker `rank` during the block, which ends by finishing with `client.finish`.

    `arenas` hold `layout.elements` values each; worker 0 brings its parameters, the others get theirs. In a run
    without servers `listener` is where the other workers reach this one.

    Raises:
        TaihuError: what went wrong; the coordinator has been told.
    """
    if job.servers:
        with _through_servers(
            job, rank, layout, arenas, progress=progress, on_compressed=on_compressed, tracer=tracer
        ) as session:
            yield session
    else:
        listener = listener or listen_for_peers(job, rank, ListenOptions())
        with meet(job, rank, layout, listener, progress=progress) as meeting:
            plan = meeting.client.get_plan(job.cluster.connect_timeout_s)
            communicator = meeting.communicator
            exchange: RingExchange
            if job.compression.method == "none":
                exchange = RingExchange(job=job, plan=plan, communicator=communicator, arenas=arenas, tracer=tracer)
            else:
                exchange = SparseRingExchange(
                    job=job,
                    plan=plan,
                    communicator=communicator,
                    arenas=arenas,
                    on_compressed=on_compressed,
                    tracer=tracer,
                )
            # Not as a context: a failure is reported first, and then told to the neighbours by the communicator.
            with closing(exchange):
                exchange.start()
                yield Session(meeting.client, exchange)


@contextmanager
def _through_servers(
    job: Job,
    rank: int,
    layout: Layout,
    arenas: Arenas,
    *,
    progress: Callable[[], Progress],
    on_compressed: Callable[[UnitReport], None],
    tracer: Tracer | None,
) -> Iterator[Session]:
    incarnation = new_incarnation()
    with CoordinatorClient(coordinator_address(job), job, MemberId(Role.WORKER, rank), incarnation) as client:
        addresses = client.join(layout=layout)
        with failure_reported(client):
            plan = client.get_plan(job.cluster.connect_timeout_s)
        exchange = ServerExchange(
            job=job,
            plan=plan,
            addresses=addresses,
            identity=WorkerIdentity(job.name, rank, incarnation),
            arenas=arenas,
            on_compressed=on_compressed,
            tracer=tracer,
        )

        def on_end(state: RunState, reason: str) -> None:
            if state is RunState.FAILED:
                exchange.fail(RunError(reason))

        # The failure is reported while the streams are open: a stream that breaks first would become the reason.
        with exchange, HeartbeatThread(client, job, progress, on_end), failure_reported(client):
            exchange.start()
            yield Session(client, exchange)
