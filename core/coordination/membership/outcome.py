"""The state of a run, and how it ends: pure, time comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taihu.core.base.errors import RunError
from taihu.core.base.words import cut_off
from taihu.core.coordination.membership.hashes import HashBook, difference
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState, error_of
from taihu.core.coordination.membership.roster import Roster
from taihu.core.coordination.membership.stopping import PendingStop, StopAgreement

_DIFFERENCE: Final = "memory, a link or a processor is at fault, or taihu: please report it"


@dataclass(frozen=True)
class Terms:
    """The meaning of a loss and of an end.

    Attributes:
        recovers: a member that is lost ends no more than this generation.
        remedy: follows the reason where the loss of a member ends the run.
        keeps_end: the run has finished when that is kept, so that nobody is told what could be forgotten.
        has_steps: an earlier generation has made some: who stops waits for another one, and saves.
    """

    recovers: bool = False
    remedy: str = ""
    keeps_end: bool = False
    has_steps: bool = False


class Outcome:
    """A run waits until all have joined, runs until every worker has finished with the same parameters, and ends.

    It fails with a one-line `reason` when a member fails, falls silent or never comes. One that is asked to stop has
    stopped when every worker has finished before its last step. One that recovers begins again where one is lost; the
    next generation makes a `pending` stop.

    Attributes:
        state: of the run.
        reason: of its end.
        stop: the agreement on the step behind which it stops.
        conclusion: the hash of the final parameters where the run has finished but for `conclude`; else None.
        end_is_kept: whether who comes later finds the end of the run; False where it has finished and could not be
            kept yet.
    """

    def __init__(self, roster: Roster, terms: Terms, pending: PendingStop) -> None:
        self.state = RunState.WAITING
        self.reason = ""
        self.stop = StopAgreement(roster.sizes[Role.WORKER])
        self._pending = pending
        if pending.reason:
            self.stop.ask(pending.reason)
        self.conclusion: str | None = None
        self.end_is_kept = True
        self._roster = roster
        self._terms = terms
        self._hashes = HashBook(roster.sizes[Role.WORKER])
        self._lost: set[MemberId] = set()
        # Those that nobody waits for any more to hear of the end: they are silent, or others have lost them.
        self._silent: set[MemberId] = set()

    @property
    def broken(self) -> RunError | None:
        """The reason not to wait for others any longer: the run has failed, or its members begin again."""
        return error_of(self.state, self.reason)

    @property
    def recovers(self) -> bool:
        """Whether a member that is lost ends no more than this generation."""
        return self._terms.recovers

    @property
    def goes_on(self) -> bool:
        """Whether it runs, and not all workers have done their part."""
        return self.state is RunState.RUNNING and self.conclusion is None

    def begin(self) -> None:
        """All have joined."""
        self.state = RunState.RUNNING

    def finish(
        self,
        member: MemberId,
        incarnation: int,
        *,
        job: str,
        now: float,
        progress: Progress | None = None,
        parameters_sha256: str = "",
        failure: str = "",
        has_lost: bool = False,
        exit_code: int | None = None,
        awaits_end: bool = False,
    ) -> None:
        """A member has done its part, or failed; the first failure becomes the run's reason.

        `has_lost` says that it failed because it has lost another one, and would begin again; its process ends with
        `exit_code`. One that `awaits_end` says so when it has heard of the run's, see `has_heard`; it may say all of
        this again, over another connection.

        Raises:
            StaleError: no such member with this incarnation has joined.
        """
        if failure and (member, incarnation) in self._roster.withdrawn:
            self._roster.check_place(member, job)
            self.fail(f"{member}: {failure}")  # it was faster to hang up than to say why
            return
        record = self._roster.record(member, incarnation, job=job)
        record.last_seen_s = now
        record.finished = True
        record.exit_code = exit_code
        self._silent.discard(member)
        if not has_lost:  # one that has lost another one does not leave by that
            record.awaits_end = awaits_end and not failure
        record.parameters_sha256 = parameters_sha256
        if progress is not None:
            record.progress = progress
        if failure and has_lost:
            self._forget(cut_off(failure))
            self.end_generation(f"{member}: {failure}")
        elif failure:
            self.fail(f"{member}: {failure}")
        elif self.goes_on and all(record.finished for record in self._roster.workers.values()):
            self._conclude()

    def has_heard(self, member: MemberId, incarnation: int, *, job: str, now: float) -> None:
        """A member has been told that the run has ended: nobody waits for it any more.

        Raises:
            StaleError: no such member with this incarnation has joined.
        """
        record = self._roster.record(member, incarnation, job=job)
        record.last_seen_s = now
        if self.state.is_final:
            record.finished, record.awaits_end = True, False

    def compare(self, member: MemberId, incarnation: int, step: int, sha256: str, *, job: str) -> None:
        """Note the hash of a worker's parameters behind `step`; fails the run if those of all workers differ.

        Raises:
            StaleError: no such member with this incarnation has joined.
        """
        self._roster.record(member, incarnation, job=job)
        if shown := self._hashes.told(str(member), step, sha256):
            self.fail(f"the workers' parameters differ after step {step} ({shown}); {_DIFFERENCE}")

    def conclude(self, *, kept: bool = True) -> None:
        """The end is kept, or cannot be kept yet: the run has finished."""
        self.end_is_kept = kept
        if self.conclusion is not None:
            self.state, self.conclusion = RunState.FINISHED, None

    def ask_to_stop(self, reason: str, *, goes_on: bool = False) -> None:
        """The run is to end in order, after a step that its workers agree on; it fails if there is none yet.

        Where it `goes_on`, and recovers, this generation ends so: whoever asks leaves it. Where this generation is
        about to end, or ends before it has stopped, the next one stops.
        """
        leaves = goes_on and self._terms.recovers
        if not leaves and self._has_steps:
            self._pending.ask(reason)
        if self.state is RunState.RUNNING and self.makes_steps:
            self.stop.ask(reason, goes_on=leaves)
        elif goes_on:
            self.end_generation(reason)
        elif self._pending.reason:
            self.stop.ask(reason)
        else:
            self.fail(reason)

    def fail(self, reason: str) -> None:
        """End the run as failed; a run that has ended keeps its state and first reason."""
        if not self._has_ended:
            self.state = RunState.FAILED
            self.reason = reason

    def end_generation(self, reason: str) -> None:
        """All members begin again, where the run recovers; else it fails."""
        if not self._terms.recovers:
            self.fail(f"{reason}; {self._terms.remedy}" if self._terms.remedy else reason)
        elif not self._has_ended:
            self.state = RunState.RECOVERING
            self.reason = reason

    def lost(self, member: MemberId, how: str) -> None:
        """A member's connection or process is gone; fails the run, if it does not recover, unless it had finished."""
        record = self._roster.members.get(member)
        if record is None:
            return
        # Who has finished is needed until all have: a run that recovers makes the last steps again for it.
        if not record.finished or (self._terms.recovers and not self._has_ended):
            self._lost.add(member)
            self.end_generation(f"{member} was lost after step {record.progress.step}: {how}")

    def fell_silent(self, member: MemberId, how: str) -> None:
        """As `lost`, of a run that has ended: nobody waits for the member any more.

        Of a broken connection one hears by `lost` alone: who awaits the end asks over the next one.
        """
        self.lost(member, how)
        if self._roster.members[member].awaits_end:
            self._silent.add(member)

    def _forget(self, name: str | None) -> None:
        """Nobody waits for a member to which a connection broke: it is dead, or hears of the end by that."""
        members = self._roster.members.items()
        self._silent |= {each for each, record in members if str(each) == name and not record.finished}

    def is_lost(self, member: MemberId) -> bool:
        """Whether a member was gone before it had finished."""
        return member in self._lost

    def over(self) -> bool:
        """Whether the run has ended and the others have said that they know (or are gone).

        An answer that was sent may be lost with its connection. Who does not know that members begin again is told as
        soon as it asks for anything; workers of a run with servers that has failed see its streams break. Who is
        silent is not gone while the end is not kept: it would begin again, and ask for a run that nobody knows.
        """
        host = self._roster.host
        return self.state is RunState.RECOVERING or (
            self.state.is_final
            and all(
                (record.finished and not record.awaits_end)
                or member in self._lost
                or (member in self._silent and self.end_is_kept)
                for member, record in self._roster.members.items()
                if member != host and (member.role is host.role or self.state is not RunState.FAILED)
            )
        )

    @property
    def makes_steps(self) -> bool:
        """Whether a member of this generation has told of any step behind it."""
        return any(record.progress.step for record in self._roster.members.values())

    @property
    def _has_steps(self) -> bool:
        """Whether the run has made any."""
        return self._terms.has_steps or self.makes_steps

    @property
    def _has_ended(self) -> bool:
        return self.state.is_final or self.conclusion is not None

    def _conclude(self) -> None:
        hashes = {str(member): record.parameters_sha256 for member, record in self._roster.workers.items()}
        step, total = self._roster.step, self._roster.total_steps
        if shown := difference(hashes):
            self.fail(f"the workers' final parameters differ ({shown}); {_DIFFERENCE}")
        elif self.stop.last_step is not None and step < total:
            reason = f"after step {step} of {total}: {self.stop.reason}"
            if self.stop.goes_on:
                self.end_generation(reason)
                return
            self.state = RunState.STOPPED
            self.reason = reason
        elif self._terms.keeps_end:
            self.conclusion = next(iter(hashes.values()))
        else:
            self.state = RunState.FINISHED
