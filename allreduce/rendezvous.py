"""Workers find each other here: through the run's coordinator, which worker 0 hosts where there are no servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.fence import EARLY_BYTES
from taihu.allreduce.peer_service import PEER_SERVICE
from taihu.core.base.errors import TaihuError
from taihu.core.coordination.client.client import CoordinatorClient, coordinator_address, failure_reported
from taihu.core.coordination.client.heartbeats import HeartbeatThread
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.service import COORDINATOR_SERVICE, new_incarnation
from taihu.core.coordination.generations import ONLY, Generation
from taihu.core.coordination.host import hosted_coordinator
from taihu.core.coordination.listener import Listener, ListenOptions, open_listener
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState, error_of
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.planner.carriage import carrier_in, first_carriage
from taihu.core.wire.base.address import is_loopback
from taihu.core.wire.frames.frame_faults import FrameFaults
from taihu.core.wire.frames.headers import BYTES_PER_VALUE
from taihu.core.wire.frames.identity import WorkerIdentity

_LEAST_EARLY_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Meeting:
    """A worker's place in a run in which workers exchange with each other; the communicator is connected.

    `servers` are the servers' addresses; `also_fail` are told why the run failed, as the communicator is.
    """

    client: CoordinatorClient
    communicator: Communicator
    identity: WorkerIdentity
    servers: tuple[str, ...] = ()
    also_fail: list[Callable[[TaihuError], None]] = field(default_factory=list)


def listen_for_peers(job: Job, rank: int, options: ListenOptions) -> Listener:
    """Listen; raises ConfigError when the address cannot be listened on."""
    hosts = rank == 0 and not job.servers
    return open_listener(options, job.cluster.coordinator, threads=3 * job.world.workers + 8, hosts=hosts)


@contextmanager
def meet(
    job: Job,
    rank: int,
    layout: Layout | None,
    listener: Listener,
    *,
    length: RunLength | None = None,
    progress: Callable[[], Progress] = Progress,
    hosting: Callable[[Coordinator], None] = lambda _: None,
    ended: Callable[[TaihuError], None] = lambda _: None,
    stop: StopNotice | None = None,
    generation: Generation = ONLY,
    faults: FrameFaults | None = None,
    mesh: bool = False,
) -> Iterator[Meeting]:
    """Take part in `job`'s run as worker `rank` during the block, which ends with `client.finish`.

    The listener is stopped at the end. `length` is the run's, where there are data. The worker that hosts the
    coordinator tells `hosting`; `ended` gets the error by which the run has ended elsewhere. Without a layout, the
    block brings it (`client.bring_layout`). `stop` is told of a stop of the run; `generation` is the one of members
    that this worker joins, where there may be several; `faults` are those of the frames that it sends to others. With
    `mesh` workers move parts to each other, which the job does not tell of.

    Raises:
        TaihuError: what went wrong; the coordinator has been told.
    """
    incarnation, workers = new_incarnation(), job.world.workers
    identity = WorkerIdentity(job.name, rank, incarnation)
    communicator = Communicator(
        identity,
        workers,
        timeout_s=job.exchange.timeout_s,
        listener=listener.direct,
        faults=faults,
        early_bytes=_early_bytes(layout),
        security=listener.options.security,
    )
    with ExitStack() as stack:
        rpc, address = listener.rpc, listener.address
        stack.callback(rpc.stop)
        # Peers may have heard that all are there, and wait to be let in when this worker joins in vain.
        stack.callback(communicator.turn_away)
        services = [PEER_SERVICE]
        hosts = rank == 0 and not job.servers
        if hosts:
            hosting(stack.enter_context(hosted_coordinator(job, rpc, generation)).coordinator)
            services.append(COORDINATOR_SERVICE)
        communicator.register(rpc.grpc_server)
        rpc.start(services, with_reflection=job.cluster.reflection)
        coordinator = address if hosts else coordinator_address(job)
        client = stack.enter_context(CoordinatorClient.at(coordinator, job, MemberId(Role.WORKER, rank), incarnation))

        addresses = client.join(address=address, layout=layout, length=length, begun=generation.begun)
        meeting = Meeting(client, communicator, identity, addresses[: job.servers])

        def on_end(state: RunState, reason: str) -> None:
            if (error := error_of(state, reason)) is not None:
                for tell in (communicator.fail, *meeting.also_fail, ended):
                    tell(error)

        # The failure is reported while the streams are open: a stream that breaks first would become the reason.
        heartbeats = HeartbeatThread(client, job, progress, on_end, stop=stop)
        with communicator, heartbeats, failure_reported(client):
            compresses = job.compression.method.selects and not job.servers
            mesh = mesh or compresses or job.exchange.fc != "data"
            one_host = all(map(is_loopback, addresses))
            carriage = first_carriage(
                job.exchange.transport,
                one_host=one_host,
                waits_for_groups=True,
            )
            communicator.admit(client.worker_incarnations, mesh=mesh)
            communicator.connect(addresses[job.servers :], mesh=mesh, carrier=carrier_in(carriage, 0))
            yield meeting


def _early_bytes(layout: Layout | None) -> int:
    """A peer may be a step ahead: it has sent its part of what is summed and gathered in two steps at most."""
    return EARLY_BYTES if layout is None else max(_LEAST_EARLY_BYTES, 4 * BYTES_PER_VALUE * layout.elements)
