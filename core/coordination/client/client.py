"""A member's side of the coordinator: join, plan, signs of life, finish, with patience, over any `Control`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
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
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import Label
from taihu.core.checkpoint.keepers import checkpoint_folder, ended_run, recovers
from taihu.core.checkpoint.salvage import OwnSteps, tell_lost
from taihu.core.coordination.client.awaited import awaited_in_words, missing_of
from taihu.core.coordination.client.hearing import hear_end
from taihu.core.coordination.client.waiting import telling_who_is_awaited
from taihu.core.coordination.control import asks
from taihu.core.coordination.control.asks import Decision, End
from taihu.core.coordination.control.control import Ask, Control
from taihu.core.coordination.control.looking import GetStatus
from taihu.core.coordination.control.remote import RemoteControl
from taihu.core.coordination.control.ways import WAYS
from taihu.core.coordination.membership.members import Begun, Life, MemberId, Progress, RunState, error_of
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.job.security import security_of
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.planner.profile import Profile
from taihu.core.process.entry import InterruptedRunError, LeavingError
from taihu.core.security.identity import member_name
from taihu.core.trace.clock_offset import ClockOffset
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.base.retry import until_answered
from taihu.core.wire.frames.format import FORM
from taihu.core.wire.serving.channel import open_channel

A = TypeVar("A")

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


def remote_control(address: str, job: Job, member: MemberId) -> RemoteControl:
    """The way of a member of `job` to the coordinator at `address`, by its certificate and token as they are then."""
    host = "server" if job.servers else "worker"

    def connect() -> grpc.Channel:
        security = security_of(job, member.role.value, member.rank)
        return open_channel(address, job.patience, security, member_name(host, 0))

    # Who is lost with it: what others say of the same death names the member.
    return RemoteControl(address, connect, WAYS, host=f"{host} 0", caller=str(member))


class CoordinatorClient:
    """One member's calls; a context manager that closes its way to the coordinator. Thread-safe.

    Args:
        control: the way to the coordinator.
        job: of the run.
        member: that calls.
        incarnation: its life.
        clock: of this process.

    Attributes:
        peer: the coordinator in words.
        member: that calls.
        recovers: whether the run goes on when a member is lost.
        coordinator_clock: how far the coordinator's clock is ahead, from the heartbeats.
        worker_incarnations: the life of every worker by rank, where workers exchange with each other: `join` brings
            it.
    """

    def __init__(
        self, control: Control, job: Job, member: MemberId, incarnation: int, clock: Clock | None = None
    ) -> None:
        self.peer = control.peer
        self._control = control
        self._host = f"{'server' if job.servers else 'worker'} 0, {self.peer}"
        self.member = member
        self._life = Life(member, incarnation)
        self._job = job
        self._patience = job.patience
        self._clock = clock or SystemClock()
        self.recovers = recovers(job)
        self.coordinator_clock = ClockOffset()
        self._end: End | None = None
        self._generation = 0
        self.worker_incarnations: tuple[int, ...] = ()

    @classmethod
    def at(cls, address: str, job: Job, member: MemberId, incarnation: int, clock: Clock | None = None) -> Self:
        """The client of the coordinator at `host:port`."""
        return cls(remote_control(address, job, member), job, member, incarnation, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()

    def begin(self, own: OwnSteps | None = None, agent: int = 0, check: Callable[[], None] = lambda: None) -> Begun:
        """Ask until this member may join; the generation to be joined.

        Where others need what its place holds, `own` steps, this member writes its part of a checkpoint. `agent` is
        the life of that one which runs this process, or of this server where it joined; `check` raises where its
        place has become another one.

        Raises:
            PeerUnreachableError: the coordinator did not answer, or the last generation did not end, in time.
            StaleError: the place is taken by a process that lives.
            FinishedError: the run has finished.
            RunError: the run has ended otherwise.
        """
        timeout_s = self._job.cluster.connect_timeout_s
        until_s = self._clock.now() + timeout_s
        held = frozenset() if own is None else own.labels()
        ask = asks.Begin(self._job.name, self._life, self._job.digest, held, agent=agent)
        while (left_s := until_s - self._clock.now()) > 0:
            answer = until_answered(
                partial(self._ask_to_begin, ask),
                peer=self._host,
                timeout_s=left_s,
                clock=self._clock,
                # Of a server that ends gRPC may take a connection and never answer on it: another one is made.
                attempt_s=self._patience.lost_after_s,
            )
            if isinstance(answer, Begun):
                return answer
            check()
            if own is not None and answer.wanted is not None:
                ask = replace(ask, part=_written(own, answer.wanted))
                until_s = self._clock.now() + timeout_s
            else:
                self._clock.sleep(_ASK_AGAIN_S)
        raise PeerUnreachableError(
            f"{self._host}: {self.member} could not take part within {timeout_s:g} s: another process has its place, "
            "or not all members have begun again; see their logs"
        )

    def _ask_to_begin(self, ask: asks.Begin, timeout_s: float) -> Begun | asks.Again:
        try:
            return self._control.call(ask, timeout_s)
        except TaihuError:
            if (ended := ended_run(self._job)) is not None:
                raise FinishedError(told_of(ended, self._job)) from None
            # Whoever takes the coordinator's place may have its name alone, and a channel to a name that is not known
            # for a while asks for it more and more rarely.
            self._control.renew(cuts=True)
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
        job, self._generation = self._job, begun.generation
        self.recovers |= begun.is_trial
        ask = asks.Join(
            job.name, self._life, job.digest, address, layout, job.shared_settings, length, begun.generation, FORM
        )
        try:
            with telling_who_is_awaited(self.awaited):
                peers = until_answered(
                    partial(self._ask_to_join, ask),
                    peer=self._host,
                    timeout_s=job.cluster.connect_timeout_s,
                    clock=self._clock,
                )
        except (InterruptedRunError, KeyboardInterrupt) as interrupt:
            # The coordinator may know of this member already, and would wait for it.
            with suppress(TaihuError):
                self.finish(failure=str(interrupt) or "interrupted", has_lost=isinstance(interrupt, LeavingError))
            raise
        self.worker_incarnations = peers.worker_incarnations
        return (*peers.server_addresses, *peers.worker_addresses)

    def _ask_to_join(self, ask: asks.Join, timeout_s: float) -> asks.Peers:
        try:
            # The coordinator gives up in the same time, and names who is missing: its answer is awaited.
            return self._control.call(ask, timeout_s + self._patience.answer_s)
        except TaihuError:
            # A channel keeps the certificates that it has read, and they may have been renewed since.
            if security_of(self._job, self.member.role.value, self.member.rank).encrypts:
                self._control.renew()
            raise

    def vouch(self, caller: MemberId, incarnation: int) -> None:
        """Ask whether somebody who calls this member is one, too.

        Raises:
            StaleError: it is none, or not in this life.
        """
        self._call(asks.Vouch(self._job.name, self._life, Life(caller, incarnation)))

    def awaited(self) -> str:
        """Words for the coordinator while it does not answer, then for the members that have not joined."""
        try:
            return awaited_in_words(missing_of(self._control.call(GetStatus(), _LOOK_S)))
        except TaihuError:
            return self._control.sought

    def bring_layout(self, layout: Layout, updates: UpdateRules | None = None) -> None:
        """Say which layers this worker exchanges, which `join` did not, and by which optimizer servers update.

        Raises:
            ConfigError: other workers have another optimizer.
            ModelError: other workers exchange others.
        """
        self._call(asks.BringLayout(self._job.name, self._life, layout, updates))

    def get_plan(self, timeout_s: float) -> Plan:
        """The run's plan; waits until the first worker has brought the layout."""
        return self._control.call(asks.GetPlan(self._job.name, self._life), timeout_s)

    def report_steps(self, step: int, steps: Sequence[StepMeasurement], timeout_s: float | None = None) -> Plan:
        """Bring measurements; waits until every worker has, and returns the plan from step + 1 on."""
        return self._control.call(asks.ReportSteps(self._job.name, self._life, step, tuple(steps)), timeout_s)

    def get_profile(self) -> Profile | None:
        """The costs that the present plan was made from, None when nothing has been measured."""
        return self._call(asks.GetProfile()).profile

    def fix_last_step(self, step: int, timeout_s: float | None = None) -> int:
        """Worker 0 stands between `step` and the next one; returns the last step when all other workers know it.

        Raises:
            RunError: the run failed.
        """
        return self._control.call(asks.FixLastStep(self._job.name, self._life, step), timeout_s)

    def decide_checkpoint(self, step: int, *, is_last: bool = False) -> Decision:
        """Whether the state behind `step` is kept, and the step behind which all workers ask again."""
        return self._call(asks.DecideCheckpoint(self._job.name, self._life, step, is_last))

    def stored(self, step: int, file: PartFile) -> None:
        """Say that this member's part of the checkpoint of `step` is durable.

        Raises:
            MemberLostError, PeerUnreachableError: nobody has answered for a while: it may be said again.
        """
        self._control.call(asks.Stored(self._job.name, self._life, step, file), self._patience.answer_s)

    def left_out(self, step: int, why: str) -> None:
        """Say that this member's part of the checkpoint of `step` cannot be had."""
        self._call(asks.Stored(self._job.name, self._life, step, left_out=why))

    def bring_copy(self, label: Label, part: bytes, *, stays: bool) -> None:
        """Bring what this member holds of a step; where it `stays`, it is that of later ones, too."""
        self._control.call(asks.Copy(self._job.name, self._life, label, part, stays), self._patience.answer_s)

    def compare(self, step: int, parameters_sha256: str) -> None:
        """Tell the hash of this worker's parameters behind `step`; the run fails where those of all differ."""
        self._call(asks.Compare(self._job.name, self._life, step, parameters_sha256))

    def heartbeat(self, progress: Progress, stop: StopNotice) -> tuple[RunState, str]:
        """Report progress, and exchange what is known of a stop.

        Returns:
            The state of the run, and why it failed or was stopped.
        """
        ask = asks.Heartbeat(self._job.name, self._life, progress, stop.wish, stop.last_step, stop.leaves)
        sent_s = self._clock.now()
        heard = self._control.call(ask, self._patience.answer_s)
        self.coordinator_clock.add(sent_s, heard.clock_s, self._clock.now())
        stop.heard(heard.stop_reason, heard.last_step, goes_on=heard.goes_on)
        if heard.state.is_final:
            self._end = End(heard.state, heard.reason)
        return heard.state, heard.reason

    def finish(self, *, parameters_sha256: str = "", failure: str = "", has_lost: bool = False) -> RunState:
        """Say that this member is done, or why it failed; returns the state of the run.

        `has_lost` says that it has lost another member, and would begin again, or leaves: the others may.
        """
        said = self._farewell(parameters_sha256=parameters_sha256, failure=failure, has_lost=has_lost)
        return self._call(said).state

    def tell_of_loss(self, error: TaihuError) -> None:
        """Say that this member has lost another one, before it gives up what third ones would miss it by."""
        if isinstance(error, LOSSES) and not isinstance(error, RecoveringError):
            # Who fails says so again, and may be heard then; where the thread that calls comes late, that was said.
            with suppress(TaihuError):
                self._control.call(self._farewell(failure=str(error), has_lost=True), _LOOK_S)

    def finish_with_all(self, *, progress: Progress, parameters_sha256: str, exit_code: int | None = None) -> None:
        """Say that this worker has done its part; returns when all have, and the run has ended.

        Its process ends with `exit_code`, where that is known. A connection that breaks is replaced: the coordinator
        is there until all have said that they have heard of the end.

        Raises:
            RunError: the run failed.
            RecoveringError: another one was lost before it had done its part.
            MemberLostError, PeerUnreachableError: the coordinator did not answer for `lost_after_s`.
        """
        said = self._farewell(
            progress=progress, parameters_sha256=parameters_sha256, until_end=True, exit_code=exit_code
        )
        end = hear_end(
            lambda timeout_s: self._control.call(said, timeout_s),  # it is held for as long as this call is
            heard=self.heard_end,
            connect=self._control.renew,
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
                self._end = End(RunState.FINISHED, "")
        return self._end

    def has_heard(self) -> None:
        """Say that this member knows of the end of the run, so that the coordinator need not wait for it.

        That fails where the coordinator has ended, or waits in vain until it gives this member up.
        """
        said = self._farewell(has_heard=True)
        try:
            self._control.call(said, self._patience.farewell_s)
        except AWAY:
            self._control.renew()
            with suppress(TaihuError):
                self._control.call(said, self._patience.farewell_s)
        except TaihuError:
            pass

    def _call(self, ask: Ask[A]) -> A:
        """The answer to what needs no others, within `lost_after_s`."""
        return self._control.call(ask, self._patience.lost_after_s)

    @property
    def _farewell(self) -> partial[asks.Finish]:
        return partial(asks.Finish, self._job.name, self._life)


def _written(own: OwnSteps, wanted: Label) -> WrittenPart | asks.LeftOut:
    """The part of a step that others need, which is written, or the reason why it cannot be."""
    try:
        return own.write(wanted)
    except (OSError, TaihuError) as error:
        tell_lost(wanted.step, error)
        return asks.LeftOut(wanted, one_line(str(error)))


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
