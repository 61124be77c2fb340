"""Promises of a run's membership under any sequence of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.memberships import make_membership

from taihu.core.base.errors import TaihuError
from taihu.core.coordination.membership.liveness import Waits
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec


@dataclass(frozen=True)
class Command:
    """Something that a member, or time, does. `detail` is what is wrong with a join, or a finishing worker's hash."""

    action: str
    member: MemberId = field(default_factory=lambda: MemberId(Role.SERVER, 0))
    incarnation: int = 1
    job: str = "demo"
    detail: str = ""
    seconds: float = 0.0


LOST_AFTER_S, JOIN_TIMEOUT_S = 5.0, 12.0
ORDER = {RunState.WAITING: 0, RunState.RUNNING: 1, RunState.FINISHED: 2, RunState.FAILED: 2}
NUMBER = st.integers(0, 2**32 - 1)
MODELS = {
    "": Layout((LayerSpec("fc", (TensorSpec("weight", (2, 3)),)),)),
    "model": Layout((LayerSpec("fc", (TensorSpec("weight", (3, 2)),)),)),
    "no model": None,
}


class Trial:
    """A membership, and beside it what its members have told it; `run` checks what must hold after any command."""

    def __init__(self, servers: int, workers: int) -> None:
        self.everyone = [MemberId(Role.SERVER, index) for index in range(servers)]
        self.everyone += [MemberId(Role.WORKER, rank) for rank in range(workers)]
        self._now = 100.0
        self._joined: dict[MemberId, int] = {}
        self._contact: dict[MemberId, float] = {}
        self._hashes: dict[MemberId, str] = {}
        self._lost: set[MemberId] = set()
        self._awaiting: set[MemberId] = set()
        self._had_ended = False
        self._peers = Role.SERVER if servers else Role.WORKER
        self._first_join_s: float | None = None
        self._layout: Layout | None = None
        self._membership = make_membership(servers, workers, Waits(LOST_AFTER_S, JOIN_TIMEOUT_S), digest="same")

    def run(self, command: Command) -> str:
        """The outcome of the command: `refused`, or the state of the run."""
        before = self._snapshot()
        must_refuse = self._must_refuse(command)
        self._had_ended = self._has_ended
        self._now += command.seconds
        try:
            self._perform(command)
        except TaihuError:
            assert must_refuse
            assert self._snapshot() == before
            return "refused"
        assert not must_refuse
        self._note(command)
        self._check_state(before[0], before[1])
        if command.action == "wait":
            self._check_silence(before[0])
        return self._membership.outcome.state.value

    def _snapshot(self) -> tuple[RunState, str, Layout | None, object]:
        run = self._membership
        return (
            run.outcome.state,
            run.outcome.reason,
            run.alike.layout,
            {member: replace(r) for member, r in run.roster.members.items()},
        )

    def _must_refuse(self, command: Command) -> bool:
        member = command.member
        if command.action in ("wait", "stop", "vanish"):
            return False
        if command.job != "demo" or member not in self.everyone:
            return True
        if command.action != "join":
            return self._joined.get(member) != command.incarnation
        if command.detail == "settings" or self._joined.get(member, command.incarnation) != command.incarnation:
            return True
        model = MODELS.get(command.detail)
        return member.role is Role.WORKER and (model is None or model != (self._layout or model))

    def _perform(self, command: Command) -> None:
        run, member, incarnation, job = self._membership, command.member, command.incarnation, command.job
        detail = command.detail
        actions: dict[str, Callable[[], None]] = {
            "join": lambda: run.admission.join(
                member,
                incarnation,
                job=job,
                digest="other" if detail == "settings" else "same",
                now=self._now,
                layout=MODELS.get(detail) if member.role is Role.WORKER else None,
            ),
            "beat": lambda: run.liveness.heartbeat(member, incarnation, Progress(), job=job, now=self._now),
            "finish": lambda: run.outcome.finish(
                member, incarnation, job=job, now=self._now, parameters_sha256=detail
            ),
            "await": lambda: run.outcome.finish(
                member, incarnation, job=job, now=self._now, parameters_sha256=detail, awaits_end=True
            ),
            "hear": lambda: run.outcome.has_heard(member, incarnation, job=job, now=self._now),
            "fail": lambda: run.outcome.finish(member, incarnation, job=job, now=self._now, failure="broken"),
            "vanish": lambda: run.outcome.lost(member, "its connection broke"),
            "stop": lambda: run.outcome.fail("interrupted"),
            "wait": lambda: run.liveness.look(self._now),
        }
        actions[command.action]()

    def _note(self, command: Command) -> None:
        member, held = command.member, self._is_held()
        if command.action == "join" and member not in self._joined:
            self._joined[member] = command.incarnation
            self._first_join_s = self._first_join_s or self._now
            self._contact[member] = self._now
            if member.role is Role.WORKER:
                self._layout = MODELS[command.detail]
        if held and not self._is_held():
            self._contact.update({other: self._now for other in self._joined if other.role is Role.WORKER})
        if command.action in ("beat", "finish", "await", "hear", "fail"):
            self._contact[member] = self._now
        if command.action in ("finish", "await", "fail"):
            self._hashes[member] = "" if command.action == "fail" else command.detail
            self._awaiting.add(member) if command.action == "await" else self._awaiting.discard(member)
        if command.action == "hear" and self._has_ended:
            self._hashes.setdefault(member, "")
            self._awaiting.discard(member)
        if command.action == "vanish" and member in self._joined and member not in self._hashes:
            self._lost.add(member)
        if command.action == "wait":
            self._lost.update(self._silent())
            if self._had_ended:
                self._awaiting -= {member for member in self._awaiting if self._is_silent(member)}

    def _silent(self) -> list[MemberId]:
        return [member for member in self._contact if self._is_silent(member) and member not in self._hashes]

    def _is_silent(self, member: MemberId) -> bool:
        is_held = self._is_held() and member.role is Role.WORKER
        return self._now - self._contact[member] > LOST_AFTER_S and not is_held

    @property
    def _has_ended(self) -> bool:
        return self._membership.outcome.state in (RunState.FINISHED, RunState.FAILED)

    def _is_held(self) -> bool:
        """Whether somebody is missing whom workers exchange with, so that they wait in their call to join."""
        return any(member.role is self._peers and member not in self._joined for member in self.everyone)

    def _check_state(self, before: RunState, reason: str) -> None:
        run = self._membership
        assert run.outcome.state is before or ORDER[run.outcome.state] > ORDER[before]
        assert bool(run.outcome.reason) == (run.outcome.state is RunState.FAILED)
        assert before is not RunState.FAILED or run.outcome.reason == reason
        assert run.roster.missing() == [member for member in self.everyone if member not in self._joined]
        assert run.outcome.state is not RunState.WAITING or run.roster.missing()
        assert run.outcome.state is not RunState.RUNNING or not run.roster.missing()
        assert (run.roster.peer_addresses() is None) == self._is_held()
        if run.outcome.state is RunState.FINISHED and before is not RunState.FINISHED:
            workers = [member for member in self.everyone if member.role is Role.WORKER]
            assert all(worker in self._hashes for worker in workers)
            assert len({self._hashes[worker] for worker in workers}) == 1
        # Of a run that has failed its servers hear by the coordinator alone, or its workers where it has none.
        told = [
            member
            for member in self._joined
            if member.role is self._peers or run.outcome.state is not RunState.FAILED
        ]
        others = [member for member in told if member != MemberId(self._peers, 0)]
        knowing = (self._hashes.keys() - self._awaiting) | self._lost
        assert run.outcome.over() == (self._has_ended and all(other in knowing for other in others))

    def _check_silence(self, before: RunState) -> None:
        """The passing of time fails a run that has not ended if and only if somebody is overdue."""
        if before in (RunState.FINISHED, RunState.FAILED):
            return
        silent = self._silent()
        since = self._now - (self._first_join_s or self._now)
        late = self._membership.roster.missing() and since > JOIN_TIMEOUT_S
        assert (self._membership.outcome.state is RunState.FAILED) == bool(silent or late)
        if silent:
            assert self._membership.outcome.reason.startswith(tuple(f"{member} was lost" for member in silent))
        elif late:
            assert all(str(member) in self._membership.outcome.reason for member in self._membership.roster.missing())


def command_of(number: int, servers: int, workers: int) -> Command:
    """The command that a number stands for: a draw for each of its parts would take most of the test's time."""
    random = Random(number)

    def one_of(role: Role) -> MemberId:
        size = servers if role is Role.SERVER else workers
        rank = random.randrange(max(1, size))
        return MemberId(role, rank if random.randrange(16) else random.choice([-1, size]))

    anyone = one_of(random.choice([Role.SERVER, Role.WORKER]))
    life = (1 if random.randrange(16) else 2, "demo" if random.randrange(16) else "other")
    pause, silence = random.choice([0.0, 0.0, 1.0, 4.0]), random.choice([0.25] * 6 + [1.0, 2.5, 5.0, 6.0])
    choices = [
        (4, Command("join", anyone, *life, seconds=pause)),
        (2, Command("join", anyone, *life, random.choice([*MODELS, "settings"]))),
        (10, Command("beat", anyone, *life)),
        (4, Command("finish", one_of(Role.WORKER), *life, random.choice(["c0ffee"] * 9 + ["beef"]))),
        (4, Command("await", one_of(Role.WORKER), *life, "c0ffee")),
        (2, Command("hear", anyone, *life)),
        (1, Command("finish", one_of(Role.SERVER), *life)),
        (8, Command("wait", seconds=silence)),
        (1, Command(random.choice(["fail", "vanish", "beat", "beat", "stop"]), anyone, *life)),
    ]
    return random.choices([command for _, command in choices], [weight for weight, _ in choices])[0]


def test_any_sequence_of_commands_keeps_the_promises() -> None:
    seen: Counter[str] = Counter()

    @settings(deadline=None, max_examples=200)
    @given(st.integers(0, 3), st.integers(1, 3), st.booleans(), NUMBER, st.lists(NUMBER, min_size=10, max_size=60))
    def check(servers: int, workers: int, everyone_joins: bool, seed: int, script: list[int]) -> None:
        trial = Trial(servers, workers)
        joins = [Command("join", member) for member in trial.everyone if everyone_joins]
        Random(seed).shuffle(joins)
        for command in [*joins, *(command_of(number, servers, workers) for number in script)]:
            seen[trial.run(command)] += 1

    check()
    assert set(seen) == {"refused", "waiting", "running", "finished", "failed"}


def test_the_run_ends_with_its_last_worker() -> None:
    """Whatever order the workers finish in, only the last one ends the run: finished if and only if all agree."""

    @settings(deadline=None, max_examples=100)
    @given(st.lists(st.sampled_from(["c0ffee", "c0ffee", "beef"]), min_size=1, max_size=4), NUMBER)
    def check(final: list[str], seed: int) -> None:
        trial = Trial(1, len(final))
        for member in trial.everyone:
            trial.run(Command("join", member))
        finishing = [Command("finish", MemberId(Role.WORKER, rank), detail=h) for rank, h in enumerate(final)]
        Random(seed).shuffle(finishing)
        states = [trial.run(command) for command in finishing]
        verdict = "finished" if len(set(final)) == 1 else "failed"
        assert states == [*["running"] * (len(final) - 1), verdict]

    check()
