"""`CoordinatorService`: messages to the coordinator, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from taihu.core.base.errors import ConfigError, FrameError, PeerUnreachableError, StaleError, TaihuError
from taihu.core.base.words import told
from taihu.core.checkpoint.gathering import Gathering
from taihu.core.coordination.agents.answering import NEEDED_BY_AGENTS, attend
from taihu.core.coordination.agents.hosting import Agents
from taihu.core.coordination.coordinator import Coordinator
from taihu.core.coordination.membership import messages, part_messages
from taihu.core.coordination.membership.members import Begun, MemberId, Role
from taihu.core.coordination.plans.plan_messages import plan_to_message
from taihu.core.system.chance import random_bits
from taihu.core.wire.base.address import host_of_peer
from taihu.core.wire.base.status import abort
from taihu.core.wire.frames.layouts import layout_from_message
from taihu.core.wire.serving.refusal_log import RefusalLog
from taihu.core.wire.serving.server import remaining_s
from taihu.protos import coordinator_pb2 as pb
from taihu.protos.coordinator_pb2_grpc import CoordinatorServiceServicer

__all__ = ["COORDINATOR_SERVICE", "CoordinatorServicer", "new_incarnation"]

COORDINATOR_SERVICE = pb.DESCRIPTOR.services_by_name["CoordinatorService"].full_name


def new_incarnation() -> int:
    """A number for this life of a process; 63 bits, never 0."""
    return random_bits(62) + 1


class CoordinatorServicer(CoordinatorServiceServicer):
    """Converts messages, calls the coordinator, turns errors into statuses.

    Those who ask to begin are told what has `begun` or, while steps that members hold are `gathered`, to ask again.
    `agents` are told what to run; None where a lost worker ends the run.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        begun: Begun | None = None,
        *,
        gathered: Gathering | None = None,
        agents: Agents | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._agents = agents
        self._begun = begun
        self._gathered = gathered
        self._refusals = RefusalLog()

    def Begin(self, request: pb.BeginRequest, context: grpc.ServicerContext) -> pb.BeginResponse:  # noqa: N802
        """Say whether a process may join, and where the run goes on from."""
        with (
            _errors_as_status(context),
            self._refusals_told(context),
            self._coordinator.changing() as (membership, now),
        ):
            member, incarnation = messages.member_from_message(request.member)
            membership.roster.check_place(member, request.job)
            if not self._takes_place(member, request):
                return pb.BeginResponse(again=True)
            if not membership.admission.admits(member, incarnation, job=request.job, now=now):
                return pb.BeginResponse(again=True)
            if self._gathered is not None:
                return _gather(self._gathered, str(member), incarnation, request, now)
            return messages.begun_to_message(self._begun or Begun(membership.admission.generation))

    def _takes_place(self, member: MemberId, request: pb.BeginRequest) -> bool:
        """Whether a process is that one which runs as `member`: of a worker, its agent says so."""
        if self._agents is None or member.role is not Role.WORKER:
            return True
        is_known = request.settings_digest == self._agents.digest
        with self._agents.changing() as attendance:
            return attendance.takes_place(member.rank, request.agent, is_known=is_known)

    def Attend(self, request: pb.AttendRequest, context: grpc.ServicerContext) -> pb.AttendResponse:  # noqa: N802
        """Note that an agent is there; hold it for a heartbeat, or until it is to run others."""
        with _errors_as_status(context):
            if self._agents is None:
                raise ConfigError(f"a lost worker ends this run; {NEEDED_BY_AGENTS}")
            return attend(self._coordinator, self._agents, request, context)

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        """Admit the member, and hold a worker until everybody is there whom it exchanges with."""
        with _errors_as_status(context), self._refusals_told(context):
            member, incarnation = messages.member_from_message(request.member)
            layout = layout_from_message(request.layout) if request.HasField("layout") else None
            length = messages.length_from_message(request.length) if request.HasField("length") else None
            with self._coordinator.changing() as (membership, now):
                membership.admission.join(
                    member,
                    incarnation,
                    job=request.job,
                    digest=request.settings_digest,
                    now=now,
                    address=told(request.address) or host_of_peer(context.peer()),
                    layout=layout,
                    settings=request.settings,
                    length=length,
                    generation=request.generation,
                )
            if member.role is Role.WORKER:
                if not context.add_callback(lambda: self._call_ended(member, incarnation)):
                    self._call_ended(member, incarnation)
                self._await_peers(member, incarnation, context)
        with self._coordinator.changing() as (membership, _):
            addresses = membership.roster.peer_addresses() or ()
            servers = membership.roster.sizes[Role.SERVER]
            return pb.JoinResponse(
                server_addresses=addresses[:servers],
                worker_addresses=addresses[servers:],
                worker_incarnations=membership.roster.worker_incarnations() if addresses[servers:] else (),
            )

    @contextmanager
    def _refusals_told(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Log why a process may not take part: it is told itself, and may be on another machine."""
        try:
            yield
        except TaihuError as error:
            if isinstance(error, (ConfigError, FrameError, StaleError)) and not isinstance(
                error, PeerUnreachableError
            ):
                kind = type(error).__name__
                self._refusals.tell("process refused", kind, peer=context.peer(), reason=str(error))
            raise

    def Vouch(self, request: pb.VouchRequest, context: grpc.ServicerContext) -> pb.VouchResponse:  # noqa: N802
        """Say to a member whether its caller is one."""
        with _errors_as_status(context):
            self._check(request)
            caller, incarnation = messages.member_from_message(request.caller)
            with self._coordinator.changing() as (membership, _):
                membership.roster.record(caller, incarnation, job=request.job)
        return pb.VouchResponse()

    def BringLayout(self, request: pb.BringLayoutRequest, context: grpc.ServicerContext) -> pb.BringLayoutResponse:  # noqa: N802
        """Note the layers of a worker that has joined."""
        with _errors_as_status(context):
            member, incarnation = messages.member_from_message(request.member)
            layout = layout_from_message(request.layout)
            updates = messages.updates_from_message(request.updates) if request.HasField("updates") else None
            with self._coordinator.changing() as (membership, _):
                membership.admission.bring_layout(member, incarnation, layout, updates, job=request.job)
        return pb.BringLayoutResponse()

    def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> pb.HeartbeatResponse:  # noqa: N802
        """Note the progress; answer with the state of the run."""
        with _errors_as_status(context), self._coordinator.changing() as (membership, now):
            member, incarnation = messages.member_from_message(request.member)
            progress = messages.progress_from_message(messages.plain(request).progress)
            membership.liveness.heartbeat(member, incarnation, progress, job=request.job, now=now)
            if member.role is Role.WORKER:
                membership.outcome.stop.learnt(member.rank, request.known_last_step)
            if request.wants_stop:
                membership.outcome.ask_to_stop(f"{member}: {request.wants_stop}", goes_on=request.leaves)
            return pb.HeartbeatResponse(
                state=messages.state_to_message(membership.outcome.state),
                reason=membership.outcome.reason,
                clock_s=now,
                stop_reason=membership.outcome.stop.reason,
                last_step=membership.outcome.stop.last_step or 0,
                goes_on=membership.outcome.stop.goes_on,
            )

    def Stop(self, request: pb.StopRequest, context: grpc.ServicerContext) -> pb.StopResponse:  # noqa: N802
        """Note that somebody wants the run to stop."""
        with _errors_as_status(context), self._coordinator.changing() as (membership, _):
            if request.job != membership.roster.job:
                raise StaleError(f"this is job {membership.roster.job!r}, not {request.job!r}; check the address")
            membership.outcome.ask_to_stop(messages.plain(request).reason)
            return pb.StopResponse(state=messages.state_to_message(membership.outcome.state))

    def FixLastStep(self, request: pb.FixLastStepRequest, context: grpc.ServicerContext) -> pb.FixLastStepResponse:  # noqa: N802
        """Fix the last step of a run that stops, and hold worker 0 until all know it."""
        with _errors_as_status(context):
            member, incarnation = messages.member_from_message(request.member)
            with self._coordinator.changing() as (membership, _):
                membership.roster.record(member, incarnation, job=request.job)
            last_step = self._coordinator.fix_last_step(request.step, remaining_s(context))
            return pb.FixLastStepResponse(last_step=last_step)

    def GetPlan(self, request: pb.GetPlanRequest, context: grpc.ServicerContext) -> pb.GetPlanResponse:  # noqa: N802
        """Wait for the plan within the caller's deadline."""
        with _errors_as_status(context):
            self._check(request)
            return plan_to_message(self._coordinator.plan(remaining_s(context)))

    def ReportSteps(self, request: pb.ReportStepsRequest, context: grpc.ServicerContext) -> pb.GetPlanResponse:  # noqa: N802
        """Take in measurements, and hold the worker until the plan of its next step is made."""
        with _errors_as_status(context):
            member, incarnation = messages.member_from_message(request.member)
            with self._coordinator.changing() as (membership, _):
                membership.roster.record(member, incarnation, job=request.job)
            steps = [messages.step_from_message(step) for step in request.steps]
            plan = self._coordinator.report(member, request.step, steps, remaining_s(context))
            return plan_to_message(plan)

    def DecideCheckpoint(  # noqa: N802
        self, request: pb.DecideCheckpointRequest, context: grpc.ServicerContext
    ) -> pb.DecideCheckpointResponse:
        """Say whether the state behind a step is kept."""
        with _errors_as_status(context):
            self._check(request)
            decision = self._coordinator.checkpointing.decide(request.step, is_last=request.is_last)
            return pb.DecideCheckpointResponse(keep=decision.keep, next_step=decision.next_step)

    def Stored(self, request: pb.StoredRequest, context: grpc.ServicerContext) -> pb.StoredResponse:  # noqa: N802
        """Note that a member's part of a checkpoint is durable."""
        with _errors_as_status(context):
            member = self._check(messages.plain(request))
            if request.left_out:
                self._coordinator.checkpointing.left_out(str(member), request.step, request.left_out)
                return pb.StoredResponse()
            file = part_messages.file_from_message(str(member), request)
            plan = self._coordinator.plan(remaining_s(context))
            self._coordinator.checkpointing.stored(str(member), request.step, file, plan)
        return pb.StoredResponse()

    def Copy(self, request: pb.CopyRequest, context: grpc.ServicerContext) -> pb.CopyResponse:  # noqa: N802
        """Take a copy of what a worker holds."""
        with _errors_as_status(context):
            member = self._check(request)
            (label,) = part_messages.held_from_message((request.of,))
            with self._coordinator.changing() as (membership, _):
                # When the generation is over others read them.
                if self._agents is not None and not membership.outcome.state.is_final:
                    self._agents.copies.put(str(member), label, request.part, stays=request.stays)
        return pb.CopyResponse()

    def Compare(self, request: pb.CompareRequest, context: grpc.ServicerContext) -> pb.CompareResponse:  # noqa: N802
        """Note the hash of a worker's parameters."""
        with _errors_as_status(context), self._coordinator.changing() as (membership, _):
            member, incarnation = messages.member_from_message(request.member)
            membership.outcome.compare(
                member, incarnation, request.step, told(request.parameters_sha256), job=request.job
            )
        return pb.CompareResponse()

    def GetProfile(self, request: pb.GetProfileRequest, context: grpc.ServicerContext) -> pb.GetProfileResponse:  # noqa: N802
        """The plan and the costs it was made from, as far as there are any."""
        known = self._coordinator.profile()
        if known is None:
            return pb.GetProfileResponse()
        plan, profile = known
        text = "" if profile is None else json.dumps(profile.to_json())
        return pb.GetProfileResponse(profile_json=text, plan=plan_to_message(plan))

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:  # noqa: N802
        """Everything that is known."""
        agents = [] if self._agents is None else self._agents.seen(self._coordinator)
        with self._coordinator.changing() as (membership, now):
            return pb.GetStatusResponse(
                agents=[
                    pb.AgentStatus(
                        name=each.name, ranks=each.ranks, seconds_since_call=each.seconds_since, leaves=each.leaves
                    )
                    for each in agents
                ],
                job=membership.roster.job,
                state=messages.state_to_message(membership.outcome.state),
                reason=membership.outcome.reason,
                members=[
                    pb.MemberStatus(
                        member=messages.member_to_message(member, 0),
                        address=record.address,
                        progress=messages.progress_to_message(record.progress),
                        seconds_since_heartbeat=now - record.last_seen_s,
                        finished=record.finished,
                    )
                    for member, record in sorted(membership.roster.members.items(), key=_by_role_and_rank)
                ],
                servers=membership.roster.sizes[Role.SERVER],
                workers=membership.roster.sizes[Role.WORKER],
                waiting_seconds=membership.admission.waiting_s(now),
                stall=membership.liveness.stall,
                checkpoint_problem=self._coordinator.checkpoint_problem,
            )

    def Finish(self, request: pb.FinishRequest, context: grpc.ServicerContext) -> pb.FinishResponse:  # noqa: N802
        """Note the end of a member; hold it until that of the run, where it asks for that."""
        with _errors_as_status(context):
            member, incarnation = messages.member_from_message(messages.plain(request).member)
            if request.has_heard:
                with self._coordinator.changing() as (membership, now):
                    membership.outcome.has_heard(member, incarnation, job=request.job, now=now)
                return pb.FinishResponse()
            with self._coordinator.changing() as (membership, now):
                membership.outcome.finish(
                    member,
                    incarnation,
                    job=request.job,
                    now=now,
                    progress=messages.progress_from_message(request.progress)
                    if request.HasField("progress")
                    else None,
                    parameters_sha256=request.parameters_sha256,
                    failure=request.failure,
                    has_lost=request.has_lost,
                    exit_code=request.exit_code if request.HasField("exit_code") else None,
                    awaits_end=request.until_end,
                )
            self._coordinator.conclude()
            if request.until_end:
                self._coordinator.wait_for(lambda m: m.outcome.state.is_final, remaining_s(context))
            with self._coordinator.changing() as (membership, _):
                return pb.FinishResponse(
                    state=messages.state_to_message(membership.outcome.state), reason=membership.outcome.reason
                )

    def _check(
        self,
        request: pb.DecideCheckpointRequest | pb.StoredRequest | pb.GetPlanRequest | pb.VouchRequest | pb.CopyRequest,
    ) -> MemberId:
        """The member that calls; raises StaleError unless it has joined."""
        member, incarnation = messages.member_from_message(request.member)
        with self._coordinator.changing() as (membership, _):
            membership.roster.record(member, incarnation, job=request.job)
        return member

    def _call_ended(self, member: MemberId, incarnation: int) -> None:
        """A worker's call to join has ended, before it was answered if its process died."""
        with self._coordinator.changing() as (membership, _):
            if membership.roster.peer_addresses() is None:
                membership.admission.withdraw(member, incarnation)

    def _await_peers(self, member: MemberId, incarnation: int, context: grpc.ServicerContext) -> None:
        self._coordinator.wait_for(
            lambda m: m.roster.peer_addresses() is not None or m.outcome.broken is not None, remaining_s(context)
        )
        with self._coordinator.changing() as (membership, _):
            if (error := membership.outcome.broken) is not None:
                membership.admission.told(member, incarnation)
                raise error
            if membership.roster.peer_addresses() is None:
                missing = ", ".join(
                    str(m) for m in membership.roster.missing() if m.role in membership.roster.peer_roles
                )
                roles = " and ".join(f"{role.value}s" for role in membership.roster.peer_roles)
                raise PeerUnreachableError(f"{missing} did not join in time; start all {roles} of the job")


@contextmanager
def _errors_as_status(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except TaihuError as error:
        abort(context, error)


def _gather(
    gathered: Gathering, member: str, incarnation: int, request: pb.BeginRequest, now: float
) -> pb.BeginResponse:
    """Take in what a member's place holds, and say which part of it is to be written."""
    gathered.holds(member, incarnation, part_messages.held_from_message(request.held), now)
    if request.part.left_out:
        (label,) = part_messages.held_from_message((request.part.of,))
        gathered.left_out(member, incarnation, label)
    elif request.HasField("part"):
        gathered.written(member, incarnation, part_messages.written_from_message(member, request.part))
    wanted = gathered.wanted_of(member, incarnation)
    (held,) = (None,) if wanted is None else part_messages.held_to_message((wanted,))
    return pb.BeginResponse(again=True, wanted=held)


def _by_role_and_rank(item: tuple[MemberId, object]) -> tuple[str, int]:
    return item[0].role.value, item[0].rank
