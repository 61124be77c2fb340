"""A server's part in one generation of a run: join, serve, and end when the generation ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from taihu.core.base.errors import RecoveringError, RunError
from taihu.core.chaos.points import Chaos, Point
from taihu.core.checkpoint.writer import maybe_writing
from taihu.core.coordination.client.client import CoordinatorClient, coordinator_address, failure_reported
from taihu.core.coordination.client.heartbeats import HeartbeatThread
from taihu.core.coordination.client.vouching import vouched_once
from taihu.core.coordination.client.waiting import telling_who_is_awaited
from taihu.core.coordination.control.memory import MemoryControl, MemoryPlace
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.service import COORDINATOR_SERVICE, new_incarnation
from taihu.core.coordination.generations import Generation
from taihu.core.coordination.host import hosted_coordinator
from taihu.core.coordination.listener import Listener
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState, error_of
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.coordination.metrics import CoordinatorMetrics
from taihu.core.history.recording import Recorder, recorded_history
from taihu.core.history.records import End
from taihu.core.job import Job
from taihu.core.process.entry import InterruptedRunError, Interrupts, LeavingError
from taihu.core.process.notices import Notices
from taihu.core.system.threads import Event
from taihu.core.trace import Tracer
from taihu.core.trace.clock_offset import ClockOffset
from taihu.core.wire.serving.metrics import ServerMetrics
from taihu.ps_server.servicer import PARAMETER_SERVER_SERVICE, ParameterServerServicer
from taihu.ps_server.shard_holder import ShardHolder

LostCallback = Callable[[int, str], None]

_TICK_S = 0.05


class Participation:
    """Server `index` in one generation; `run` is called once.

    Args:
        job: the run's, from where this generation goes on.
        index: of this server; 0 hosts the coordinator.
        generation: to join.
        listener: where others reach this server; it is started here, and stays open.
        metrics: of the process.
        tracer: of the process.
        interrupts: of which the first is a wish that the run ends in order.
        chaos: is asked at each point.
        notices: get what cannot be written.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        generation: Generation,
        listener: Listener,
        *,
        metrics: ServerMetrics,
        tracer: Tracer,
        interrupts: Interrupts,
        chaos: Chaos,
        notices: Notices | None = None,
    ) -> None:
        self._notices = notices or Notices()
        self._job = job
        self._index = index
        self._generation = generation
        self._listener = listener
        self._metrics = metrics
        self._tracer = tracer
        self._interrupts = interrupts
        self._chaos = chaos
        self._member = MemberId(Role.SERVER, index)
        self._incarnation = new_incarnation()
        self._log = structlog.get_logger().bind(role="server", rank=index)
        self._ended = Event()
        self._stop = StopNotice()
        self.coordinator_clock = ClockOffset()
        self.outcome = (RunState.FAILED, "the server stopped before the run ended")

    @property
    def stop_is_expected(self) -> bool:
        """Whether the run was about to stop."""
        return self._stop.expected

    def run(self) -> None:
        """Serve until the generation has ended.

        Raises:
            RunError: the run failed.
            RecoveringError: a member was lost, and another generation begins.
            ConfigError, PeerUnreachableError: this server could not join.
            BaseException: what interrupted this; all others of the run have been told.
        """
        with recorded_history(self._job, str(self._member), self._generation.number, self._notices.say) as recorder:
            if self._index == 0:
                self._host(recorder)
            else:
                self._follow(recorder)
            recorder.add(End())

    def stop(self, reason: str) -> None:
        """End the run from another thread."""
        self._end(RunState.FAILED, reason)

    def _host(self, recorder: Recorder) -> None:
        """Server 0: be the coordinator too."""
        with hosted_coordinator(self._job, self._listener.rpc, self._generation) as desk:
            coordinator = desk.coordinator
            self._metrics.exported.put(CoordinatorMetrics(coordinator, self._member, self._generation))

            def lost(rank: int, how: str) -> None:
                with coordinator.changing() as (members, _):
                    members.outcome.lost(MemberId(Role.WORKER, rank), how)

            # It stays open: calls of workers that come late hear why the run has ended.
            control = MemoryControl(MemoryPlace(desk), caller=str(self._member))
            client = CoordinatorClient(control, self._job, self._member, self._incarnation)
            with (
                self._serving(client, recorder, lost, COORDINATOR_SERVICE),
                _failing(coordinator, self._member),
            ):
                client.join(address=self._listener.address, begun=self._generation.begun)
                self._chaos.passes(Point.JOIN)
                with telling_who_is_awaited(client.awaited):
                    self._watch(coordinator)

    def _watch(self, coordinator: Coordinator) -> None:
        """Stay alive in the membership until the run or this process ends."""
        with self._stopping_in_order():
            while not self._ended.is_set():
                coordinator.wait_for(lambda members: members.outcome.state.is_final, _TICK_S)
                with coordinator.changing() as (members, now):
                    outcome, job, progress = members.outcome, self._job.name, self._progress()
                    members.liveness.heartbeat(self._member, self._incarnation, progress, job=job, now=now)
                    if self._stop.wish:
                        outcome.ask_to_stop(f"{self._member}: {self._stop.wish}", goes_on=self._stop.leaves)
                    if outcome.state.is_final:
                        self._end(outcome.state, outcome.reason)
            self._raise_if_broken()
            self._chaos.passes(Point.FAREWELL)

    def _follow(self, recorder: Recorder) -> None:
        """Servers 1 and up: join server 0."""
        address = coordinator_address(self._job)
        with CoordinatorClient.at(address, self._job, self._member, self._incarnation) as client:
            self.coordinator_clock = client.coordinator_clock
            heartbeats = HeartbeatThread(client, self._job, self._progress, self._end, stop=self._stop)

            def gone(rank: int, how: str) -> None:
                self._log.info("worker gone", worker=rank, how=how)
                heartbeats.hurry()

            # An interrupt may come when the coordinator knows of this server, but not yet this server of that.
            with self._serving(client, recorder, gone), failure_reported(client):
                client.join(address=self._listener.address, begun=self._generation.begun)
                self._chaos.passes(Point.JOIN)
                with heartbeats, self._stopping_in_order():
                    with telling_who_is_awaited(client.awaited):
                        self._ended.wait()
                    self._raise_if_broken()
            self._chaos.passes(Point.FAREWELL)
            client.has_heard()

    @contextmanager
    def _serving(
        self, client: CoordinatorClient, recorder: Recorder, on_lost: LostCallback, *services: str
    ) -> Iterator[None]:
        """Serve; when the block fails, whoever waits for this server is told why."""
        rpc, timeout_s = self._listener.rpc, self._job.cluster.connect_timeout_s
        holder = ShardHolder(
            self._job,
            self._index,
            self._incarnation,
            lambda: client.get_plan(timeout_s),
            recorder=recorder,
            chaos=self._chaos,
            generation=self._generation.number,
            staleness=self._metrics.staleness,
        )
        with maybe_writing(self._job, client.stored, client.left_out, self._chaos) as writer:
            servicer = ParameterServerServicer(
                self._job,
                holder,
                self._metrics,
                on_lost=on_lost,
                tracer=self._tracer,
                listener=self._listener.direct,
                vouch=vouched_once(client.vouch),
                writer=writer,
                chaos=self._chaos,
            )
            servicer.register(rpc.grpc_server)
            rpc.start((PARAMETER_SERVER_SERVICE, *services), with_reflection=self._job.cluster.reflection)
            self._log.info("listening", address=self._listener.address)
            try:
                yield
            except BaseException as error:
                self._end(RunState.FAILED, f"{self._member}: {error}")
                servicer.fail(error_of(*self.outcome) or RunError(self.outcome[1]))
                raise
            finally:
                rpc.retire()
                servicer.close()
                holder.stop_sharing()
                holder.stop_holding()

    def _progress(self) -> Progress:
        """The progress that this server tells of itself."""
        return Progress(update_seconds=self._metrics.mean_update_seconds)

    @contextmanager
    def _stopping_in_order(self) -> Iterator[None]:
        """During the block, an interrupt is a wish that the coordinator is told."""

        def take(reason: str) -> bool:
            self._stop.ask(reason, leaves=self._interrupts.leaves)
            return True

        with self._interrupts.offered_to(take):
            yield

    def _raise_if_broken(self) -> None:
        state, reason = self.outcome
        if (error := error_of(state, reason)) is not None:
            wish = self._stop.wish
            if isinstance(error, RecoveringError) and self._stop.leaves:
                raise LeavingError(wish)
            raise InterruptedRunError(wish) if reason == f"{self._member}: {wish}" else error

    def _end(self, state: RunState, reason: str) -> None:
        if not self._ended.is_set():
            self.outcome = (state, reason)
            self._ended.set()


@contextmanager
def _failing(coordinator: Coordinator, member: MemberId) -> Iterator[None]:
    """Fail the run when the block fails, with `member` as the reason; whoever waits for the run is told."""
    try:
        yield
    except RecoveringError:
        raise  # the membership has said so
    except LeavingError as error:
        with coordinator.changing() as (members, _):
            members.outcome.end_generation(f"{member}: {error}")
        raise
    except BaseException as error:
        with coordinator.changing() as (members, _):
            members.outcome.fail(f"{member}: {error}")
        raise
