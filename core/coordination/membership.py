"""The members of a run and the state that it is in: a pure object, time comes in as an argument."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from taihu.core.base.errors import ConfigError, FinishedError, RecoveringError, RunError, StaleError
from taihu.core.base.words import counted
from taihu.core.coordination.agreement import Agreement
from taihu.core.coordination.farewells import CrossedWaits, left_behind
from taihu.core.coordination.hashes import HashBook, difference
from taihu.core.coordination.members import MemberId, MemberRecord, Progress, Role, RunState, error_of
from taihu.core.coordination.standstill import Standstill, stall_of
from taihu.core.coordination.stopping import StopAgreement
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength

__all__ = ["TICK_S", "Membership"]

TICK_S: Final = 0.2
"""Seconds from one look at who is silent to the next."""

_DIFFERENCE: Final = "memory, a link or a processor is at fault, or taihu: please report it"
# Who has not been heard of for so many heartbeats leaves its place to another process that asks for it.
_REPLACED_AFTER: Final = 4
# Who waits for each other is sure to when it is the same for so many.
_SURE_AFTER: Final = 4
# Processes that ask for a place; who asks once and never again is forgotten.
_MOST_ASKING: Final = 1024


class Membership:
    """The members of one run or, where it `recovers`, of one generation of them.

    A run waits until every server and worker has joined, runs until every worker has finished with the same
    parameters, and fails with a one-line `reason` when a member fails, falls silent or never comes. One that is asked
    to stop has stopped when every worker has finished before its last step. Where it `recovers`, a member that is
    lost ends no more than this generation. Its coordinator is server 0 or, in a run without servers, worker 0. With
    `workers_meet`, workers exchange with each other beside the servers; with `layout_follows`, they join without
    their layers and bring them later. `remedy` follows the reason where the loss of a member ends the run. One that
    `keeps_end` has finished when that is kept, so that nobody is told what could be forgotten: see `conclusion`.
    """

    def __init__(
        self,
        *,
        job: str,
        digest: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        servers: int,
        workers: int,
        lost_after_s: float,
        join_timeout_s: float,
        workers_meet: bool = False,
        layout_follows: bool = False,
        heartbeat_s: float = 0.5,
        still_after_s: float = math.inf,
        generation: int = 0,
        recovers: bool = False,
        remedy: str = "",
        keeps_end: bool = False,
    ) -> None:
        self.job = job
        self.generation = generation
        self.sizes = {Role.SERVER: servers, Role.WORKER: workers}
        self.state = RunState.WAITING
        self.reason = ""
        self.members: dict[MemberId, MemberRecord] = {}
        self.stop = StopAgreement(workers)
        self._lost_after_s = lost_after_s
        self._join_timeout_s = join_timeout_s
        self._first_join_s: float | None = None
        self._lost: set[MemberId] = set()
        # Of those that await the end of the run, who is not waited for any more.
        self._silent: set[MemberId] = set()
        self._host = MemberId(Role.SERVER if servers else Role.WORKER, 0)
        self._alike = Agreement(str(self._host), digest, settings)
        self._recovers = recovers
        self._remedy = remedy
        self._keeps_end = keeps_end
        self.conclusion: str | None = None
        """The hash of the final parameters where the run has finished but for `conclude`; None before and after."""
        self.end_is_kept = True
        """Whether who comes later finds the end of the run; False where it has finished and could not be kept yet."""
        self._replaced_after_s = _REPLACED_AFTER * heartbeat_s
        self._hashes = HashBook(workers)
        self._standstill = Standstill(still_after_s)
        self._crossed_waits = CrossedWaits(_SURE_AFTER * heartbeat_s)
        self._withdrawn: set[tuple[MemberId, int]] = set()
        self._asked_s: dict[tuple[MemberId, int], float] = {}
        self._layout_follows = layout_follows
        # Whom workers exchange with: their addresses must be known to all of them.
        self.peer_roles = tuple(
            role for role in Role if self.sizes[role] and (role is self._host.role or (servers and workers_meet))
        )

    @property
    def layout(self) -> Layout | None:
        """The layers that workers exchange, as soon as one has brought them."""
        return self._alike.layout

    @property
    def updates(self) -> UpdateRules | None:
        """The optimizer by which servers update, where a worker brought one with its layers."""
        return self._alike.updates

    @property
    def length(self) -> RunLength | None:
        """The length of the run, as soon as a worker with data has joined."""
        return self._alike.length

    @property
    def broken(self) -> RunError | None:
        """The reason not to wait for others any longer: the run has failed, or its members begin again."""
        return error_of(self.state, self.reason)

    def admits(self, member: MemberId, incarnation: int, *, job: str, now: float) -> bool:
        """Whether a process may join as `member` now; if not, it is to ask again.

        One that asks for the place of a member that has not been heard of for some heartbeats replaces it, for which
        a new generation begins.

        Raises:
            ConfigError: the rank is outside the world.
            StaleError: another job, or the place is taken by a process that lives.
            FinishedError: the run has finished.
            RunError: the run has ended otherwise.
        """
        self._check(member, job)
        if self.state is RunState.RECOVERING:
            return False
        if self.state.is_final:
            if self.state is RunState.FINISHED:
                self._replaces(member, incarnation, now)
                raise FinishedError(f"{member}: the run has finished, nothing is left to do")
            raise RunError(f"the run has {self.state.value}{f': {self.reason}' if self.reason else ''}")
        record = self.members.get(member)
        if record is None or record.incarnation == incarnation:
            return True
        if len(self._asked_s) >= _MOST_ASKING and (member, incarnation) not in self._asked_s:
            del self._asked_s[next(iter(self._asked_s))]
        asked_s = self._asked_s.setdefault((member, incarnation), now)
        if record.last_seen_s > asked_s + self._replaced_after_s:
            raise _taken(member, job)
        if now - record.last_seen_s > self._replaced_after_s:
            self.lost(member, "another process has taken its place")
        return False

    def withdraw(self, member: MemberId, incarnation: int) -> None:
        """A call to join has ended. The last one of a process: nobody knows of it yet, and another may come."""
        record = self.members.get(member)
        if self.state is RunState.WAITING and record is not None and record.incarnation == incarnation:
            record.joining -= 1
            if not record.joining:
                del self.members[member]
                self._withdrawn.add((member, incarnation))

    def join(
        self,
        member: MemberId,
        incarnation: int,
        *,
        job: str,
        digest: str,
        now: float,
        address: str = "",
        layout: Layout | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        length: RunLength | None = None,
        generation: int = 0,
    ) -> None:
        """Admit a member; the first worker's layout and length become the run's. The same incarnation may join again.

        `settings` are those behind `digest`, by key, to say which differ.

        Raises:
            ConfigError: the rank is outside the world, or the member's settings or data differ.
            ModelError: the worker's layers differ from the run's.
            RecoveringError: the member was to join an earlier generation.
            StaleError: another job, or the rank is taken by another live process.
        """
        self._check(member, job)
        is_late = generation != self.generation or self.state is RunState.RECOVERING
        # Who was told of an earlier generation has the settings of that one.
        if not generation or not is_late:
            self._alike.check_settings(str(member), digest, settings)
        if is_late:
            raise RecoveringError(f"{member} was to join members that begin again from a checkpoint now")
        known = self.members.get(member)
        if known is not None and known.incarnation != incarnation:
            raise _taken(member, job)
        if length is not None:
            self._alike.check_length(str(member), length)
        if member.role is Role.WORKER and (layout is not None or not self._layout_follows):
            self._alike.check_layout(str(member), layout)
        if known is None:
            self._hold_workers(now)
            self._withdrawn.discard((member, incarnation))  # its connection broke, and it asked over another one
            known = self.members[member] = MemberRecord(incarnation, address, now)
        known.joining += 1
        if self._first_join_s is None:
            self._first_join_s = now
        if self.state is RunState.WAITING and not self.missing():
            self.state = RunState.RUNNING

    def bring_layout(
        self, member: MemberId, incarnation: int, layout: Layout, updates: UpdateRules | None = None, *, job: str
    ) -> None:
        """A worker that has joined says which layers it exchanges; the first one's become the run's.

        So do its `updates`, the optimizer of a script that servers carry out.

        Raises:
            ConfigError: its optimizer differs from the run's.
            ModelError: they differ from the run's.
            StaleError: no such member with this incarnation has joined.
        """
        self._record(member, incarnation, job)
        self._alike.check_updates(str(member), updates, layout)
        self._alike.check_layout(str(member), layout)

    def check(self, member: MemberId, incarnation: int, *, job: str) -> None:
        """Raise StaleError unless such a member with this incarnation has joined."""
        self._record(member, incarnation, job)

    def heartbeat(self, member: MemberId, incarnation: int, progress: Progress, *, job: str, now: float) -> None:
        """Note that a member lives and where it is.

        Raises:
            StaleError: no such member with this incarnation has joined.
        """
        record = self._record(member, incarnation, job)
        record.last_seen_s = now
        if not record.finished:  # else it has been on its way for longer than the last word
            record.progress = progress
        self._standstill.heard(member, progress, now)

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
        self._check(member, job)
        if failure and (member, incarnation) in self._withdrawn:
            self.fail(f"{member}: {failure}")  # it was faster to hang up than to say why
            return
        record = self._record(member, incarnation, job)
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
            self.end_generation(f"{member}: {failure}")
        elif failure:
            self.fail(f"{member}: {failure}")
        elif self.state is RunState.RUNNING and self.conclusion is None and self._all_finished(Role.WORKER):
            self._conclude()

    def conclude(self, *, kept: bool = True) -> None:
        """The end is kept, or cannot be kept yet: the run has finished."""
        self.end_is_kept = kept
        if self.conclusion is not None:
            self.state, self.conclusion = RunState.FINISHED, None

    def has_heard(self, member: MemberId, incarnation: int, *, job: str, now: float) -> None:
        """A member has been told that the run has ended: nobody waits for it any more.

        Raises:
            StaleError: no such member with this incarnation has joined.
        """
        record = self._record(member, incarnation, job)
        record.last_seen_s = now
        if self.state.is_final:
            record.finished, record.awaits_end = True, False

    def compare(self, member: MemberId, incarnation: int, step: int, sha256: str, *, job: str) -> None:
        """Note the hash of a worker's parameters behind `step`; fails the run if those of all workers differ.

        Raises:
            StaleError: no such member with this incarnation has joined.
        """
        self._record(member, incarnation, job)
        if shown := self._hashes.told(str(member), step, sha256):
            self.fail(f"the workers' parameters differ after step {step} ({shown}); {_DIFFERENCE}")

    def told(self, member: MemberId, incarnation: int) -> None:
        """A member's call to join is answered with the run's failure: it takes no part, and says no more.

        It may have hung up, and another process may be waiting in its place.
        """
        record = self.members.get(member)
        if record is not None and record.incarnation == incarnation:
            record.finished = True

    def ask_to_stop(self, reason: str, *, goes_on: bool = False) -> None:
        """The run is to end in order, after a step that its workers agree on; it fails if there is none yet.

        Where it `goes_on`, and recovers, this generation ends so: whoever asks leaves it.
        """
        if self.state is RunState.RUNNING and any(record.progress.step for record in self.members.values()):
            self.stop.ask(reason, goes_on=goes_on and self._recovers)
        elif goes_on:
            self.end_generation(reason)
        else:
            self.fail(reason)

    def fail(self, reason: str) -> None:
        """End the run as failed; a run that has ended keeps its state and first reason."""
        if not self._has_ended:
            self.state = RunState.FAILED
            self.reason = reason

    def lost(self, member: MemberId, how: str) -> None:
        """A member's connection or process is gone; fails the run, if it does not recover, unless it had finished."""
        record = self.members.get(member)
        if record is None:
            return
        # Who has finished is needed until all have: a run that recovers makes the last steps again for it.
        if not record.finished or (self._recovers and not self._has_ended):
            self._lost.add(member)
            self.end_generation(f"{member} was lost after step {record.progress.step}: {how}")

    def expire(self, now: float) -> None:
        """Fail the run when a member has been silent, or missing, for too long, or others wait for it in vain.

        Workers are not silent while `peer_addresses` are not known.
        """
        self._hold_workers(now)
        has_ended = self.state.is_final
        for member, record in self.members.items():
            if now - record.last_seen_s > self._lost_after_s:
                self.lost(member, f"no heartbeat for {self._lost_after_s:g} s")
                if has_ended and record.awaits_end:
                    self._silent.add(member)  # a broken connection is another matter: it asks over the next one
        if self.state is RunState.RUNNING and self.conclusion is None:
            if in_vain := left_behind(self.members) or self._crossed_waits.look(now, self.members):
                self.fail(in_vain)
            elif still := self._standstill.look(now, self.members):
                self.end_generation(still)
        if self.waiting_s(now) > self._join_timeout_s:
            names = ", ".join(map(str, self.missing()))
            self.fail(f"{names} did not join within {self._join_timeout_s:g} s; start all members of the job")

    @property
    def stall(self) -> str:
        """The step that takes unusually long, and who waits for what; "" where none does."""
        return stall_of(self.members) if self.state is RunState.RUNNING else ""

    def waiting_s(self, now: float) -> float:
        """Time since the first member joined, while others are missing."""
        if self.state is not RunState.WAITING or self._first_join_s is None:
            return 0.0
        return now - self._first_join_s

    def missing(self) -> list[MemberId]:
        """Members that have not joined, servers first."""
        everyone = (MemberId(role, rank) for role, size in self.sizes.items() for rank in range(size))
        return [member for member in everyone if member not in self.members]

    def is_lost(self, member: MemberId) -> bool:
        """Whether a member was gone before it had finished."""
        return member in self._lost

    def peer_addresses(self) -> tuple[str, ...] | None:
        """The address of every server by index, and of every worker if they meet; None until all have joined."""
        peers = [MemberId(role, rank) for role in self.peer_roles for rank in range(self.sizes[role])]
        if not all(peer in self.members for peer in peers):
            return None
        return tuple(self.members[peer].address for peer in peers)

    def worker_incarnations(self) -> tuple[int, ...]:
        """The life of every worker that has joined, by rank."""
        workers = (MemberId(Role.WORKER, rank) for rank in range(self.sizes[Role.WORKER]))
        return tuple(self.members[worker].incarnation for worker in workers if worker in self.members)

    @property
    def _has_ended(self) -> bool:
        return self.state.is_final or self.conclusion is not None

    def over(self) -> bool:
        """Whether the run has ended and the others have said that they know (or are gone).

        An answer that was sent may be lost with its connection. Who does not know that members begin again is told as
        soon as it asks for anything; workers of a run with servers that has failed see its streams break. Who is
        silent is not gone while the end is not kept: it would begin again, and ask for a run that nobody knows.
        """
        return self.state is RunState.RECOVERING or (
            self.state.is_final
            and all(
                (record.finished and not record.awaits_end)
                or member in self._lost
                or (member in self._silent and self.end_is_kept)
                for member, record in self.members.items()
                if member != self._host and (member.role is self._host.role or self.state is not RunState.FAILED)
            )
        )

    def _replaces(self, member: MemberId, incarnation: int, now: float) -> None:
        """Somebody is told of the end in the place of a process that is gone."""
        record = self.members.get(member)
        if record is None or record.incarnation == incarnation:
            return
        if now - record.last_seen_s > self._replaced_after_s:
            record.finished, record.awaits_end = True, False

    def end_generation(self, reason: str) -> None:
        """All members begin again, where the run recovers; else it fails."""
        if not self._recovers:
            self.fail(f"{reason}; {self._remedy}" if self._remedy else reason)
        elif not self._has_ended:
            self.state = RunState.RECOVERING
            self.reason = reason

    def _hold_workers(self, now: float) -> None:
        """A worker's call to join is held until every peer is there; it cannot send heartbeats before."""
        if self.peer_addresses() is not None:
            return
        for member, record in self.members.items():
            if member.role is Role.WORKER:
                record.last_seen_s = now
        # A call that is held is no sign of life, which whoever asks for its place waits for: a host that has lost its
        # power leaves it as it was.
        for asking in self._asked_s:
            if asking[0].role is Role.WORKER:
                self._asked_s[asking] = now

    def _conclude(self) -> None:
        hashes = {str(m): r.parameters_sha256 for m, r in self.members.items() if m.role is Role.WORKER}
        if shown := difference(hashes):
            self.fail(f"the workers' final parameters differ ({shown}); {_DIFFERENCE}")
        elif self.stop.last_step is not None and self._step < self._total_steps:
            reason = f"after step {self._step} of {self._total_steps}: {self.stop.reason}"
            if self.stop.goes_on:
                self.end_generation(reason)
                return
            self.state = RunState.STOPPED
            self.reason = reason
        elif self._keeps_end:
            self.conclusion = next(iter(hashes.values()))
        else:
            self.state = RunState.FINISHED

    @property
    def _step(self) -> int:
        return max(record.progress.step for record in self.members.values())

    @property
    def _total_steps(self) -> int:
        return max(record.progress.total_steps for record in self.members.values())

    def _all_finished(self, role: Role) -> bool:
        return all(record.finished for member, record in self.members.items() if member.role is role)

    def _record(self, member: MemberId, incarnation: int, job: str) -> MemberRecord:
        self._check(member, job)
        record = self.members.get(member)
        if record is None or record.incarnation != incarnation:
            raise StaleError(f"{member} with incarnation {incarnation} has not joined job {self.job!r}")
        return record

    def _check(self, member: MemberId, job: str) -> None:
        if job != self.job:
            raise StaleError(f"{member} belongs to job {job!r}, this is job {self.job!r}; check the address")
        size = self.sizes[member.role]
        if not 0 <= member.rank < size:
            raise ConfigError(
                f"{member}: outside the world of {counted(size, member.role.value)}; "
                f"expected 0 to {size - 1}, or raise cluster.{member.role.value}s"
            )


def _taken(member: MemberId, job: str) -> StaleError:
    return StaleError(f"{member} has already joined job {job!r}; give every process a rank of its own")
