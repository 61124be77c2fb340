"""A member's side of the coordinator: join, plan, heartbeats, finish."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
import structlog

from taihu.core.base.errors import (
    AWAY,
    ConfigError,
    DamagedFrameError,
    ExchangeError,
    FinishedError,
    MemberLostError,
    PeerUnreachableError,
    RecoveringError,
    StaleError,
    TaihuError,
)
from taihu.core.base.words import one_line
from taihu.core.checkpoint.ended import ENDED, EndedRun
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.held_steps import Label
from taihu.core.checkpoint.keepers import checkpoint_folder, ended_run, recovers
from taihu.core.checkpoint.salvage import OwnSteps, tell_lost
from taihu.core.coordination.awaited import awaited_in_words, missing_of
from taihu.core.coordination.checkpoints import Decision
from taihu.core.coordination.hearing import End, hear_end
from taihu.core.coordination.membership import messages, part_messages
from taihu.core.coordination.membership.members import Begun, MemberId, Progress, RunState, error_of
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.plan_messages import plan_from_message
from taihu.core.coordination.waiting import telling_who_is_awaited
from taihu.core.job import Job
from taihu.core.job.security import security_of
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.planner.profile import Profile
from taihu.core.process.entry import InterruptedRunError, LeavingError
from taihu.core.security.identity import member_name
from taihu.core.security.security import Security
from taihu.core.trace.clock_offset import ClockOffset
from taihu.core.wire.base.address import split_address
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.base.host_names import is_known
from taihu.core.wire.base.retry import call_until_reachable
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.frames.codec import layout_to_message
from taihu.core.wire.serving.channel import open_channel
from taihu.protos import coordinator_pb2 as pb
from taihu.protos.coordinator_pb2_grpc import CoordinatorServiceStub

__all__ = ["LOSSES", "CoordinatorClient", "coordinator_address", "failure_reported", "told_of"]

T = TypeVar("T")

_LOOK_S = 1.0
_ASK_AGAIN_S = 0.05


LOSSES: Final = (
    DamagedFrameError,
    ExchangeError,
    MemberLostError,
    PeerUnreachableError,
    RecoveringError,
    StaleError,
)
"""Errors that tell of another member, which is lost, cannot be heard, or has begun again."""


class CoordinatorClient:
    """One member's calls; a context manager that closes the channel. Thread-safe.

    `coordinator_clock` tells how far the coordinator's clock is ahead, from the heartbeats.
    """

    def __init__(
        self, address: str, job: Job, member: MemberId, incarnation: int, clock: Clock | None = None
    ) -> None:
        self.peer = f"coordinator at {address}"
        self._address = address
        # Who is lost with it: what others say of the same death names the member.
        self._host = f"{'server' if job.servers else 'worker'} 0, {self.peer}"
        self.member = member
        self._job = job
        self._patience = job.patience
        self._connect_timeout_s = job.cluster.connect_timeout_s
        self._incarnation = incarnation
        self._clock = clock or SystemClock()
        self.recovers = recovers(job)
        self.coordinator_clock = ClockOffset()
        self._channel = self._open_channel()
        self._stub = CoordinatorServiceStub(self._channel)
        # Others may still call over one that is silent: it is closed at the end.
        self._former: list[grpc.Channel] = []
        self._end: End | None = None
        self._generation = 0
        self.worker_incarnations: tuple[int, ...] = ()
        """The life of every worker by rank, where workers exchange with each other: `join` brings it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in (*self._former, self._channel):
            channel.close()

    def _open_channel(self) -> grpc.Channel:
        host = member_name("server" if self._job.servers else "worker", 0)
        return open_channel(self._address, self._patience, self._security(), host)

    def _security(self) -> Security:
        """The certificates and the token of this member, as they are now."""
        return security_of(self._job, self.member.role.value, self.member.rank)

    def _connect_anew(self) -> None:
        self._former.append(self._channel)
        self._channel = self._open_channel()
        self._stub = CoordinatorServiceStub(self._channel)

    def begin(self, own: OwnSteps | None = None, agent: int = 0) -> Begun:
        """Ask until this member may join; the generation to be joined.

        Where others need what its place holds, `own` steps, this member writes its part of a checkpoint. `agent` is
        the life of that one which runs this process.

        Raises:
            PeerUnreachableError: the coordinator did not answer, or the last generation did not end, in time.
            StaleError: the place is taken by a process that lives.
            FinishedError: the run has finished.
            RunError: the run has ended otherwise.
        """
        timeout_s, until_s = self._connect_timeout_s, self._clock.now() + self._connect_timeout_s
        held = frozenset() if own is None else own.labels()
        request = pb.BeginRequest(
            job=self._job.name,
            member=self._member(),
            held=part_messages.held_to_message(held),
            agent=agent,
            settings_digest=self._job.digest,
        )
        while (left_s := until_s - self._clock.now()) > 0:
            response = call_until_reachable(
                lambda remaining_s: self._ask_to_begin(request, remaining_s),
                peer=self._host,
                timeout_s=left_s,
                clock=self._clock,
                # Of a server that ends gRPC may take a connection and never answer on it: another one is made.
                attempt_s=self._patience.lost_after_s,
            )
            if not response.again:
                return messages.begun_from_message(response)
            if own is not None and response.HasField("wanted"):
                request.part.CopyFrom(_written(own, response.wanted))
                until_s = self._clock.now() + timeout_s
            else:
                self._clock.sleep(_ASK_AGAIN_S)
        raise PeerUnreachableError(
            f"{self._host}: {self.member} could not take part within {timeout_s:g} s: another process has its place, "
            "or not all members have begun again; see their logs"
        )

    def _ask_to_begin(self, request: pb.BeginRequest, timeout_s: float) -> pb.BeginResponse:
        try:
            return self._stub.Begin(request, timeout=timeout_s)
        except grpc.RpcError:
            if (ended := ended_run(self._job)) is not None:
                raise FinishedError(told_of(ended, self._job)) from None
            # Whoever takes the coordinator's place may have its name alone, and a channel to a name that is not known
            # for a while asks for it more and more rarely.
            self._channel.close()
            self._channel = self._open_channel()
            self._stub = CoordinatorServiceStub(self._channel)
            raise

    def join(
        self,
        *,
        address: str = "",
        layout: Layout | None = None,
        length: RunLength | None = None,
        begun: Begun = Begun(0),  # noqa: B008 - it cannot be changed
    ) -> tuple[str, ...]:
        """Announce this member; a worker gets its peers' addresses as soon as all of them are there.

        A worker with data brings the run's `length`, whoever has asked for it the generation that has `begun`. The
        peers are the servers by index and, where workers exchange with each other, all workers by rank.

        Raises:
            PeerUnreachableError: the coordinator did not answer, or peers did not join, in time.
            ConfigError, ModelError, StaleError: the coordinator refused; the message says why.
        """
        self._generation = begun.generation
        self.recovers |= begun.is_trial
        request = pb.JoinRequest(
            job=self._job.name,
            member=self._member(),
            settings_digest=self._job.digest,
            address=address,
            layout=layout_to_message(layout) if layout is not None else None,
            settings=self._job.shared_settings,
            length=messages.length_to_message(length),
            generation=begun.generation,
        )
        try:
            with telling_who_is_awaited(self.awaited):
                response = call_until_reachable(
                    lambda remaining_s: self._ask_to_join(request, remaining_s),
                    peer=self._host,
                    timeout_s=self._connect_timeout_s,
                    clock=self._clock,
                )
        except (InterruptedRunError, KeyboardInterrupt) as interrupt:
            # The coordinator may know of this member already, and would wait for it.
            with suppress(TaihuError):
                self.finish(failure=str(interrupt) or "interrupted", has_lost=isinstance(interrupt, LeavingError))
            raise
        self.worker_incarnations = tuple(response.worker_incarnations)
        return (*response.server_addresses, *response.worker_addresses)

    def _ask_to_join(self, request: pb.JoinRequest, timeout_s: float) -> pb.JoinResponse:
        try:
            # The coordinator gives up in the same time, and names who is missing: its answer is awaited.
            return self._stub.Join(request, timeout=timeout_s + self._patience.answer_s)
        except grpc.RpcError:
            # A channel keeps the certificates that it has read, and they may have been renewed since.
            if self._security().encrypts:
                self._connect_anew()
            raise

    def vouch(self, caller: MemberId, incarnation: int) -> None:
        """Ask whether somebody who calls this member is one, too.

        Raises:
            StaleError: it is none, or not in this life.
        """
        said = messages.member_to_message(caller, incarnation)
        request = pb.VouchRequest(job=self._job.name, member=self._member(), caller=said)
        self._call(self._stub.Vouch, request, self._patience.lost_after_s)

    def awaited(self) -> str:
        """Words for the coordinator while it does not answer, then for the members that have not joined."""
        try:
            status = messages.plain(self._stub.GetStatus(pb.GetStatusRequest(), timeout=_LOOK_S))
        except grpc.RpcError:
            host = split_address(self._address)[0]
            return f"the {self.peer}" if is_known(host) else f"the name {host} of the {self.peer} to be known"
        return awaited_in_words(missing_of(status))

    def bring_layout(self, layout: Layout, updates: UpdateRules | None = None) -> None:
        """Say which layers this worker exchanges, which `join` did not, and by which optimizer servers update.

        Raises:
            ConfigError: other workers have another optimizer.
            ModelError: other workers exchange others.
        """
        request = pb.BringLayoutRequest(
            job=self._job.name,
            member=self._member(),
            layout=layout_to_message(layout),
            updates=messages.updates_to_message(updates),
        )
        self._call(self._stub.BringLayout, request, self._patience.lost_after_s)

    def get_plan(self, timeout_s: float) -> Plan:
        """The run's plan; waits until the first worker has brought the layout."""
        request = pb.GetPlanRequest(job=self._job.name, member=self._member())
        return plan_from_message(self._call(self._stub.GetPlan, request, timeout_s))

    def report_steps(self, step: int, steps: Sequence[StepMeasurement], timeout_s: float | None = None) -> Plan:
        """Bring measurements; waits until every worker has, and returns the plan from step + 1 on."""
        request = pb.ReportStepsRequest(
            job=self._job.name, member=self._member(), step=step, steps=map(messages.step_to_message, steps)
        )
        return plan_from_message(self._call(self._stub.ReportSteps, request, timeout_s))

    def get_profile(self) -> Profile | None:
        """The costs that the present plan was made from, None when nothing has been measured."""
        text = self._call(self._stub.GetProfile, pb.GetProfileRequest(), self._patience.lost_after_s).profile_json
        return Profile.from_json(json.loads(text)) if text else None

    def fix_last_step(self, step: int, timeout_s: float | None = None) -> int:
        """Worker 0 stands between `step` and the next one; returns the last step when all other workers know it.

        Raises:
            RunError: the run failed.
        """
        request = pb.FixLastStepRequest(job=self._job.name, member=self._member(), step=step)
        return int(self._call(self._stub.FixLastStep, request, timeout_s).last_step)

    def decide_checkpoint(self, step: int, *, is_last: bool = False) -> Decision:
        """Whether the state behind `step` is kept, and the step behind which all workers ask again."""
        request = pb.DecideCheckpointRequest(job=self._job.name, member=self._member(), step=step, is_last=is_last)
        response = self._call(self._stub.DecideCheckpoint, request, self._patience.lost_after_s)
        return Decision(response.keep, response.next_step)

    def stored(self, step: int, file: PartFile) -> None:
        """Say that this member's part of the checkpoint of `step` is durable.

        Raises:
            MemberLostError, PeerUnreachableError: nobody has answered for a while: it may be said again.
        """
        request = pb.StoredRequest(
            job=self._job.name,
            member=self._member(),
            step=step,
            name=file.name,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
        )
        self._call(self._stub.Stored, request, self._patience.answer_s)

    def left_out(self, step: int, why: str) -> None:
        """Say that this member's part of the checkpoint of `step` cannot be had."""
        request = pb.StoredRequest(job=self._job.name, member=self._member(), step=step, left_out=why)
        self._call(self._stub.Stored, request, self._patience.lost_after_s)

    def bring_copy(self, label: Label, part: bytes, *, stays: bool) -> None:
        """Bring what this member holds of a step; where it `stays`, it is that of later ones, too."""
        (of,) = part_messages.held_to_message((label,))
        request = pb.CopyRequest(job=self._job.name, member=self._member(), of=of, part=part, stays=stays)
        self._call(self._stub.Copy, request, self._patience.answer_s)

    def compare(self, step: int, parameters_sha256: str) -> None:
        """Tell the hash of this worker's parameters behind `step`; the run fails where those of all differ."""
        request = pb.CompareRequest(
            job=self._job.name, member=self._member(), step=step, parameters_sha256=parameters_sha256
        )
        self._call(self._stub.Compare, request, self._patience.lost_after_s)

    def heartbeat(self, progress: Progress, stop: StopNotice) -> tuple[RunState, str]:
        """Report progress, and exchange what is known of a stop.

        Returns:
            The state of the run, and why it failed or was stopped.
        """
        request = pb.HeartbeatRequest(
            job=self._job.name,
            member=self._member(),
            progress=messages.progress_to_message(progress),
            wants_stop=stop.wish,
            known_last_step=stop.last_step or 0,
            leaves=stop.leaves,
        )
        sent_s = self._clock.now()
        response = messages.plain(self._call(self._stub.Heartbeat, request, self._patience.answer_s))
        self.coordinator_clock.add(sent_s, response.clock_s, self._clock.now())
        stop.heard(response.stop_reason, response.last_step or None, goes_on=response.goes_on)
        state = messages.state_from_message(response.state)
        if state.is_final:
            self._end = state, response.reason
        return state, response.reason

    def finish(self, *, parameters_sha256: str = "", failure: str = "", has_lost: bool = False) -> RunState:
        """Say that this member is done, or why it failed; returns the state of the run.

        `has_lost` says that it has lost another member, and would begin again, or leaves: the others may.
        """
        said = pb.FinishRequest(parameters_sha256=parameters_sha256, failure=failure, has_lost=has_lost)
        return messages.state_from_message(self._finish(said, None, self._patience.lost_after_s).state)

    def tell_of_loss(self, error: TaihuError) -> None:
        """Say that this member has lost another one, before it gives up what third ones would miss it by."""
        if isinstance(error, LOSSES) and not isinstance(error, RecoveringError):
            said = pb.FinishRequest(failure=str(error), has_lost=True)
            # Who fails says so again, and may be heard then; where the thread that calls comes late, that was said.
            with suppress(TaihuError):
                self._finish(said, None, _LOOK_S)

    def finish_with_all(self, *, progress: Progress, parameters_sha256: str, exit_code: int | None = None) -> None:
        """Say that this worker has done its part; returns when all have, and the run has ended.

        Its process ends with `exit_code`, where that is known. A connection that breaks is replaced: the coordinator
        is there until all have said that they have heard of the end.

        Raises:
            RunError: the run failed.
            RecoveringError: another one was lost before it had done its part.
            MemberLostError, PeerUnreachableError: the coordinator did not answer for `lost_after_s`.
        """
        said = pb.FinishRequest(parameters_sha256=parameters_sha256, until_end=True, exit_code=exit_code)

        def ask(timeout_s: float) -> End:
            response = self._finish(said, progress, timeout_s)  # it is held for as long as this call is
            return messages.state_from_message(response.state), response.reason

        end = hear_end(
            ask,
            heard=self.heard_end,
            connect=self._connect_anew,
            patience=self._patience,
            clock=self._clock,
        )
        if (error := error_of(*end)) is not None:
            raise error
        self.has_heard()

    def heard_end(self) -> End | None:
        """The end of this generation, as far as it was told, or is kept beside the run's checkpoints."""
        if self._end is None and self.recovers:
            ended = ended_run(self._job)
            if ended is not None and ended.generation == self._generation:
                self._end = RunState.FINISHED, ""
        return self._end

    def has_heard(self) -> None:
        """Say that this member knows of the end of the run, so that the coordinator need not wait for it.

        That fails where the coordinator has ended, or waits in vain until it gives this member up.
        """
        said = pb.FinishRequest(has_heard=True)
        try:
            self._finish(said, None, self._patience.farewell_s)
        except AWAY:
            self._connect_anew()
            with suppress(TaihuError):
                self._finish(said, None, self._patience.farewell_s)
        except TaihuError:
            pass

    def _finish(
        self, said: pb.FinishRequest, progress: Progress | None, timeout_s: float | None
    ) -> pb.FinishResponse:
        said.job = self._job.name
        said.member.CopyFrom(self._member())
        if progress is not None:
            said.progress.CopyFrom(messages.progress_to_message(progress))
        return messages.plain(self._call(self._stub.Finish, said, timeout_s))

    def _call(self, method: Callable[..., T], request: object, timeout_s: float | None) -> T:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._host) from None
        except ValueError:  # the channel has been closed: a thread that calls may come late
            raise StaleError(f"{self.member} takes no part any more") from None

    def _member(self) -> pb.Member:
        return messages.member_to_message(self.member, self._incarnation)


def _written(own: OwnSteps, wanted: pb.HeldStep) -> pb.HeldPart:
    """The part of a step that others need, which is written, or the reason why it cannot be."""
    (label,) = part_messages.held_from_message((wanted,))
    try:
        return part_messages.written_to_message(own.write(label))
    except (OSError, TaihuError) as error:
        tell_lost(label.step, error)
        return pb.HeldPart(of=wanted, left_out=one_line(str(error)))


@contextmanager
def failure_reported(client: CoordinatorClient) -> Iterator[None]:
    """Tell the coordinator why this member fails, so that no other one waits for it.

    Raises:
        RecoveringError: in place of what this member has lost another one by, where the run recovers.
    """
    try:
        yield
    except BaseException as error:
        leaves = isinstance(error, LeavingError)
        reason, has_lost = str(error) or repr(error), leaves or isinstance(error, LOSSES)
        state = None
        try:
            state = client.finish(failure=reason, has_lost=has_lost)
        except TaihuError:
            structlog.get_logger().warning("the coordinator could not be told", reason=reason)
        begins_again = state is RunState.RECOVERING or (state is None and client.recovers)
        if begins_again and has_lost and not leaves:
            raise RecoveringError(reason) from error
        raise


def told_of(ended: EndedRun, job: Job) -> str:
    """The words for a process that finds the end of its run kept."""
    where = f"{checkpoint_folder(job)}/{ENDED}"
    return f"nothing is left to do: the run has finished, parameters {ended.parameters_sha256[:12]}, see {where}"


def coordinator_address(job: Job) -> str:
    """The coordinator's address; raises ConfigError when the job does not say."""
    if job.cluster.coordinator is None:
        host = "server 0" if job.servers else "worker 0"
        raise ConfigError(f"{host}'s address unknown: give --coordinator HOST:PORT of {host}, or cluster.coordinator")
    return job.cluster.coordinator
