"""The answers to all calls of a coordinator, whatever brings them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from taihu.core.base.errors import ConfigError, FrameError, PeerUnreachableError, StaleError, TaihuError
from taihu.core.base.words import told
from taihu.core.checkpoint.files import PartFile, file_name
from taihu.core.checkpoint.gathering import Gathering
from taihu.core.coordination.agents.answering import NEEDED_BY_AGENTS, attend
from taihu.core.coordination.agents.hosting import Agents
from taihu.core.coordination.control import asks
from taihu.core.coordination.control.control import Ask, Call
from taihu.core.coordination.control.looking import AgentStatus, GetStatus, MemberStatus, RunStatus, Stop
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.past import Past
from taihu.core.coordination.membership.members import Begun, MemberId, Role, RunState
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.servers.answering import NO_RUN_TO_JOIN, seat
from taihu.core.coordination.servers.hosting import JoinedServers
from taihu.core.wire.frames.format import FORM
from taihu.core.wire.serving.refusal_log import RefusalLog

A = TypeVar("A")

OfMember = (
    asks.DecideCheckpoint | asks.Stored | asks.GetPlan | asks.Vouch | asks.Copy | asks.ReportSteps | asks.FixLastStep
)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MISTAKES: Final = (ConfigError, FrameError, StaleError)


class Desk:
    """Answers by `coordinator`; any thread may ask, and is held where the answer is.

    Those who ask to begin are told what has `begun` or, while steps that members hold are `gathered`, to ask again.
    `agents` are told what to run, servers that `joined` their places; None where a lost worker ends the run. Those
    who look on are told the `past`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        begun: Begun | None = None,
        *,
        gathered: Gathering | None = None,
        agents: Agents | None = None,
        joined: JoinedServers | None = None,
        past: Past = Past(1),  # noqa: B008 - it cannot be changed
    ) -> None:
        self.coordinator = coordinator
        self._past = past
        self._agents = agents
        self._joined = joined
        self._begun = begun
        self._gathered = gathered
        self._refusals = RefusalLog()
        self._answers: Mapping[type[Ask[Any]], Callable[[Any, Call], Any]] = MappingProxyType(
            {
                asks.Begin: self._begin,
                asks.Join: self._join,
                asks.Vouch: self._vouch,
                asks.BringLayout: self._bring_layout,
                asks.Heartbeat: self._heartbeat,
                asks.GetPlan: self._get_plan,
                asks.ReportSteps: self._report_steps,
                asks.FixLastStep: self._fix_last_step,
                asks.DecideCheckpoint: self._decide_checkpoint,
                asks.Stored: self._stored,
                asks.Copy: self._copy,
                asks.Compare: self._compare,
                asks.Finish: self._finish,
                asks.GetProfile: self._get_profile,
                asks.Attend: self._attend,
                asks.Seat: self._seat,
                GetStatus: self._get_status,
                Stop: self._stop,
            }
        )

    def answer(self, ask: Ask[A], call: Call) -> A:
        """The answer to one ask; raises the TaihuError that whoever calls is to hear."""
        return cast("A", self._answers[type(ask)](ask, call))

    def _begin(self, ask: asks.Begin, call: Call) -> Begun | asks.Again:
        """Whether a process may join, and where the run goes on from."""
        member, incarnation = ask.member.member, ask.member.incarnation
        with self._refusals_told(call), self.coordinator.changing() as (membership, now):
            if member.role is Role.WORKER or not ask.agent:
                membership.roster.check_place(member, ask.job)
            # A server without a rank may not have heard yet that its place is another one.
            if not self._takes_place(member, ask):
                return asks.Again()
            if not membership.admission.admits(member, incarnation, job=ask.job, now=now):
                return asks.Again()
            if self._gathered is not None:
                return _gather(self._gathered, ask, now)
            begun = self._begun or Begun(membership.admission.generation)
            return begun if self._agents is None else replace(begun, shared_out=self._agents.shared_out)

    def _takes_place(self, member: MemberId, ask: asks.Begin) -> bool:
        """Whether a process is that one which runs as `member`: of a worker, its agent says so."""
        if self._joined is not None and member.role is Role.SERVER:
            with self._joined.changing() as seats:
                return seats.takes_place(member.rank, ask.agent)
        if self._agents is None or member.role is not Role.WORKER:
            return True
        is_known = ask.settings_digest == self._agents.digest
        with self._agents.changing() as attendance:
            return attendance.takes_place(member.rank, ask.agent, is_known=is_known)

    def _attend(self, ask: asks.Attend, call: Call) -> asks.Assigned:
        if self._agents is None:
            raise ConfigError(f"a lost worker ends this run; {NEEDED_BY_AGENTS}")
        return attend(self.coordinator, self._agents, ask, call)

    def _seat(self, ask: asks.Seat, call: Call) -> asks.Seated:
        if self._joined is None:
            raise ConfigError(NO_RUN_TO_JOIN)
        return seat(self.coordinator, self._joined, ask, call)

    def _join(self, ask: asks.Join, call: Call) -> asks.Peers:
        """Admit the member, and hold a worker until everybody is there whom it exchanges with."""
        member, incarnation = ask.member.member, ask.member.incarnation
        with self._refusals_told(call):
            if ask.frames != FORM:
                raise ConfigError(
                    f"{member} is of another version of taihu, whose frames have another form (number {ask.frames}, "
                    f"expected {FORM}); install the same version everywhere"
                )
            with self.coordinator.changing() as (membership, now):
                membership.admission.join(
                    member,
                    incarnation,
                    job=ask.job,
                    digest=ask.settings_digest,
                    now=now,
                    address=ask.address or call.host(),
                    layout=ask.layout,
                    settings=ask.settings,
                    length=ask.length,
                    generation=ask.generation,
                )
            if member.role is Role.WORKER:
                call.when_ended(lambda: self._call_ended(member, incarnation))
                self._await_peers(member, incarnation, call)
        with self.coordinator.changing() as (membership, _):
            roster = membership.roster
            addresses, servers = roster.peer_addresses() or (), roster.sizes[Role.SERVER]
            lives = roster.worker_incarnations() if addresses[servers:] else ()
            return asks.Peers(addresses[:servers], addresses[servers:], lives)

    @contextmanager
    def _refusals_told(self, call: Call) -> Iterator[None]:
        """Log why a process may not take part: it is told itself, and may be on another machine."""
        try:
            yield
        except TaihuError as error:
            if isinstance(error, _MISTAKES) and not isinstance(error, PeerUnreachableError):
                kind = type(error).__name__
                self._refusals.tell("process refused", kind, peer=call.peer, reason=str(error))
            raise

    def _vouch(self, ask: asks.Vouch, _: Call) -> None:
        self._check(ask)
        with self.coordinator.changing() as (membership, _now):
            membership.roster.record(ask.caller.member, ask.caller.incarnation, job=ask.job)

    def _bring_layout(self, ask: asks.BringLayout, _: Call) -> None:
        with self.coordinator.changing() as (membership, _now):
            membership.admission.bring_layout(
                ask.member.member, ask.member.incarnation, ask.layout, ask.updates, job=ask.job
            )

    def _heartbeat(self, ask: asks.Heartbeat, _: Call) -> asks.Heard:
        member = ask.member.member
        with self.coordinator.noting() as (membership, now):
            outcome, stop = membership.outcome, membership.outcome.stop
            membership.liveness.heartbeat(member, ask.member.incarnation, ask.progress, job=ask.job, now=now)
            if member.role is Role.WORKER:
                stop.learnt(member.rank, ask.known_last_step or 0)
            if ask.wants_stop:
                if self._joined is not None and ask.leaves and member.role is Role.SERVER:
                    self._joined.leaves(member.rank)
                outcome.ask_to_stop(f"{member}: {ask.wants_stop}", goes_on=ask.leaves)
            return asks.Heard(outcome.state, outcome.reason, now, stop.reason, stop.last_step, stop.goes_on)

    def _stop(self, ask: Stop, _: Call) -> RunState:
        with self.coordinator.changing() as (membership, _now):
            if ask.job != membership.roster.job:
                raise StaleError(f"this is job {membership.roster.job!r}, not {ask.job!r}; check the address")
            membership.outcome.ask_to_stop(ask.reason)
            return membership.outcome.state

    def _fix_last_step(self, ask: asks.FixLastStep, call: Call) -> int:
        self._check(ask)
        return self.coordinator.fix_last_step(ask.step, call.left_s())

    def _get_plan(self, ask: asks.GetPlan, call: Call) -> Plan:
        self._check(ask)
        return self.coordinator.plan(call.left_s())

    def _report_steps(self, ask: asks.ReportSteps, call: Call) -> Plan:
        member = self._check(ask)
        return self.coordinator.report(member, ask.step, ask.steps, call.left_s())

    def _decide_checkpoint(self, ask: asks.DecideCheckpoint, _: Call) -> asks.Decision:
        self._check(ask)
        return self.coordinator.checkpointing.decide(ask.step, is_last=ask.is_last)

    def _stored(self, ask: asks.Stored, call: Call) -> None:
        member = str(self._check(ask))
        if ask.file is None:
            self.coordinator.checkpointing.left_out(member, ask.step, ask.left_out)
            return
        _check_part(member, ask.file)
        plan = self.coordinator.plan(call.left_s())
        self.coordinator.checkpointing.stored(member, ask.step, ask.file, plan)

    def _copy(self, ask: asks.Copy, _: Call) -> None:
        member = self._check(ask)
        with self.coordinator.changing() as (membership, _now):
            # When the generation is over others read them.
            if self._agents is not None and not membership.outcome.state.is_final:
                self._agents.copies.put(str(member), ask.of, ask.part, stays=ask.stays)

    def _compare(self, ask: asks.Compare, _: Call) -> None:
        member, incarnation = ask.member.member, ask.member.incarnation
        with self.coordinator.changing() as (membership, _now):
            membership.outcome.compare(member, incarnation, ask.step, ask.parameters_sha256, job=ask.job)

    def _get_profile(self, _: asks.GetProfile, __: Call) -> asks.Known:
        known = self.coordinator.profile()
        return asks.Known() if known is None else asks.Known(*known)

    def _get_status(self, _: GetStatus, __: Call) -> RunStatus:
        agents = () if self._agents is None else self._agents.seen(self.coordinator)
        with self.coordinator.changing() as (membership, now):
            roster, outcome = membership.roster, membership.outcome
            return RunStatus(
                job=roster.job,
                state=outcome.state,
                reason=outcome.reason,
                members=tuple(
                    MemberStatus(
                        member, record.address, record.progress, now - record.last_seen_s, finished=record.finished
                    )
                    for member, record in sorted(roster.members.items(), key=_by_role_and_rank)
                ),
                servers=roster.sizes[Role.SERVER],
                workers=roster.sizes[Role.WORKER],
                waiting_seconds=membership.admission.waiting_s(now),
                checkpoint_problem=self.coordinator.checkpoint_problem,
                stall=membership.liveness.stall,
                agents=tuple(AgentStatus(*each) for each in agents),
                generations=self._past.generations,
                changes=self._past.changes,
            )

    def _finish(self, ask: asks.Finish, call: Call) -> asks.End:
        """Note the end of a member; hold it until that of the run, where it asks for that."""
        member, incarnation = ask.member.member, ask.member.incarnation
        with self.coordinator.changing() as (membership, now):
            outcome = membership.outcome
            if ask.has_heard:
                outcome.has_heard(member, incarnation, job=ask.job, now=now)
                return asks.End(outcome.state, outcome.reason)
            outcome.finish(
                member,
                incarnation,
                job=ask.job,
                now=now,
                progress=ask.progress,
                parameters_sha256=ask.parameters_sha256,
                failure=ask.failure,
                has_lost=ask.has_lost,
                exit_code=ask.exit_code,
                awaits_end=ask.until_end,
            )
        self.coordinator.conclude()
        if ask.until_end:
            self.coordinator.wait_for(lambda m: m.outcome.state.is_final, call.left_s())
        with self.coordinator.changing() as (membership, _):
            return asks.End(membership.outcome.state, membership.outcome.reason)

    def _check(self, ask: OfMember) -> MemberId:
        """The member that calls; raises StaleError unless it has joined."""
        with self.coordinator.changing() as (membership, _):
            membership.roster.record(ask.member.member, ask.member.incarnation, job=ask.job)
        return ask.member.member

    def _call_ended(self, member: MemberId, incarnation: int) -> None:
        """A worker's call to join has ended, before it was answered if its process died."""
        with self.coordinator.changing() as (membership, _):
            if membership.roster.peer_addresses() is None:
                membership.admission.withdraw(member, incarnation)

    def _await_peers(self, member: MemberId, incarnation: int, call: Call) -> None:
        self.coordinator.wait_for(
            lambda m: m.roster.peer_addresses() is not None or m.outcome.broken is not None, call.left_s()
        )
        with self.coordinator.changing() as (membership, _):
            roster = membership.roster
            if (error := membership.outcome.broken) is not None:
                membership.admission.told(member, incarnation)
                raise error
            if roster.peer_addresses() is None:
                missing = ", ".join(str(each) for each in roster.missing() if each.role in roster.peer_roles)
                roles = " and ".join(f"{role.value}s" for role in roster.peer_roles)
                raise PeerUnreachableError(f"{missing} did not join in time; start all {roles} of the job")


def _gather(gathered: Gathering, ask: asks.Begin, now: float) -> asks.Again:
    """Take in what a member's place holds, and say which part of it is to be written."""
    member, incarnation = str(ask.member.member), ask.member.incarnation
    gathered.holds(member, incarnation, ask.held, now)
    if isinstance(ask.part, asks.LeftOut):
        gathered.left_out(member, incarnation, ask.part.label)
    elif ask.part is not None:
        _check_part(member, ask.part.file)
        gathered.written(member, incarnation, ask.part)
    return asks.Again(gathered.wanted_of(member, incarnation))


def _check_part(member: str, file: PartFile) -> None:
    """Raise FrameError for a file that is not the member's part, or without its hash."""
    expected = file_name(member)
    if file.name != expected or not _SHA256.fullmatch(file.sha256):
        raise FrameError(f"{member} has stored {told(file.name)!r}: expected {expected} and its SHA-256")


def _by_role_and_rank(item: tuple[MemberId, object]) -> tuple[str, int]:
    return item[0].role.value, item[0].rank
