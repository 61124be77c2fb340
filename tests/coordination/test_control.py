"""Calls of the coordinator over gRPC and in memory: the same scenarios, the same answers.

A line is `WHO VERB WORDS -> ANSWER`; `*` in an answer is anything. With `later` the call is made beside those that
follow, until `WHO hears -> ANSWER`; with `~>` the answer comes soon, asked for again and again.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from support.cluster import layout_of, make_job
from support.controls import KINDS, Place, coordinator_of, life_of, place
from support.daemons import wait_for
from typing_extensions import override

from taihu.core.base.errors import MemberLostError, PeerUnreachableError, StaleError, TaihuError
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.control import asks
from taihu.core.coordination.control.control import Ask, Call, Control
from taihu.core.coordination.control.looking import GetStatus, RunStatus, Stop
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.membership.members import Begun, Life, MemberId, Progress, Role, RunState
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.plans.plan import Plan
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.frames.format import FORM

JOB = make_job(1, 2)
PATIENCE_S = 60.0

SCENARIOS = {
    "a run from the first who joins to the end": """
        onlooker asks -> waiting, 0 of 3
        server 0 joins -> peers here:1
        worker 0 later joins 3
        worker 1 joins 3 -> peers here:1
        worker 0 hears -> peers here:1
        worker 0 plans -> plan 1
        server 0 beats 0 -> running
        worker 1 beats 4 -> running
        onlooker asks -> running, 3 of 3, worker 1 behind 4
        worker 0 later awaits aa
        worker 1 awaits aa -> finished
        worker 0 hears -> finished
        worker 0 leaves -> finished
        server 0 beats 0 -> finished
    """,
    "parameters that differ at the end": """
        server 0 joins -> peers here:1
        worker 0 later joins 3
        worker 1 joins 3 -> peers here:1
        worker 0 hears -> peers here:1
        worker 0 compares 2 aa -> nothing
        worker 1 compares 2 bb -> nothing
        worker 0 beats 2 -> failed: the workers' parameters differ after step 2 *
        worker 0 plans -> RunError: the workers' parameters differ after step 2 *
    """,
    "who has not joined": """
        server 0 joins -> peers here:1
        worker 0 plans -> StaleError: worker 0 with incarnation 1000 has not joined job 'taihu'
        worker 1 beats 3 -> StaleError: worker 1 with incarnation 1001 has not joined job 'taihu'
        worker 0 fails a hand -> StaleError: worker 0 with incarnation 1000 has not joined job 'taihu'
        worker 7 joins 3 -> ConfigError: worker 7: outside the world of 2 workers; *
        server 0 vouches worker 1 -> StaleError: worker 1 with incarnation 1001 has not joined *
        server 0 decides 3 -> StaleError: this run keeps no checkpoints; *
        server 0 attends -> ConfigError: a lost worker ends this run; agents need checkpoint.dir, *
    """,
    "a worker that waits in vain is told for whom, and forgotten": """
        worker 0 waits 0.5 -> PeerUnreachableError: server 0 did not join in time; start all servers of the job
        onlooker asks ~> waiting, 0 of 3
    """,
    "layers that differ": """
        server 0 joins -> peers here:1
        worker 0 later joins 3
        onlooker asks ~> waiting, 2 of 3
        worker 1 joins 4 -> ModelError: worker 1*
        worker 1 joins 3 -> peers here:1
        worker 0 hears -> peers here:1
    """,
    "another version of taihu, whose frames nobody here can read": """
        server 0 joins -> peers here:1
        worker 0 upgrades 3 -> ConfigError: worker 0 is of another version of taihu, * (number 3, expected 2); *
        onlooker asks -> waiting, 1 of 3
    """,
    "a run that is stopped behind a step that all know": """
        server 0 joins -> peers here:1
        worker 0 later joins 3
        worker 1 joins 3 -> peers here:1
        worker 0 hears -> peers here:1
        worker 0 beats 2 -> running
        onlooker stops enough -> running
        worker 1 beats 2 -> running, stops for enough
        worker 0 later fixes 3
        worker 1 beats 3 ~> running, stops behind 5 for enough
        worker 1 knows 5 -> running, stops behind 5 for enough
        worker 0 hears -> 5
    """,
    "a run that fails tells who waits": """
        worker 0 later joins 3
        worker 1 later joins 3
        onlooker asks ~> waiting, 2 of 3
        worker 1 fails out of paper -> failed: worker 1: out of paper
        worker 0 hears -> RunError: worker 1: out of paper
        worker 1 hears -> RunError: worker 1: out of paper
    """,
    "a coordinator that is gone": """
        server 0 joins -> peers here:1
        coordinator goes
        server 0 beats 0 -> nobody
        onlooker asks -> nobody
        coordinator comes
        server 0 beats 0 ~> waiting
    """,
}


def member_of(who: str) -> Life:
    role, rank = who.split()
    return life_of(MemberId(Role(role), int(rank)))


def ask_of(who: str, verb: str, words: str) -> tuple[Ask[object], float]:
    """The ask of a line, and the seconds that it waits for the answer."""
    if who == "onlooker":
        return (GetStatus() if verb == "asks" else Stop(JOB.name, words)), PATIENCE_S
    me, job = member_of(who), JOB.name
    if verb in ("joins", "waits", "upgrades"):
        layout = None if me.member.role is Role.SERVER else layout_of(3 if verb == "waits" else int(words), 5)
        address = "here:1" if me.member.role is Role.SERVER else ""
        form = FORM + (verb == "upgrades")
        join = asks.Join(job, me, JOB.digest, address, layout, JOB.shared_settings, frames=form)
        return join, float(words) if verb == "waits" else PATIENCE_S
    made: dict[str, Callable[[], Ask[object]]] = {
        "plans": lambda: asks.GetPlan(job, me),
        "beats": lambda: asks.Heartbeat(job, me, Progress(step=int(words))),
        "knows": lambda: asks.Heartbeat(job, me, Progress(step=4), known_last_step=int(words)),
        "compares": lambda: asks.Compare(job, me, int(words.split(maxsplit=1)[0]), words.split()[1]),
        "vouches": lambda: asks.Vouch(job, me, member_of(words)),
        "decides": lambda: asks.DecideCheckpoint(job, me, int(words)),
        "attends": lambda: asks.Attend(job, 7, "somebody", JOB.digest),
        "fixes": lambda: asks.FixLastStep(job, me, int(words)),
        "awaits": lambda: asks.Finish(job, me, Progress(step=9), words, until_end=True),
        "leaves": lambda: asks.Finish(job, me, has_heard=True),
        "fails": lambda: asks.Finish(job, me, failure=words),
    }
    return made[verb](), PATIENCE_S


def shown(answer: object) -> str:
    """An answer as scenarios have it."""
    if isinstance(answer, asks.Peers):
        return f"peers {' '.join(answer.server_addresses) or 'none'}"
    if isinstance(answer, Plan | RunState):
        return f"plan {answer.version}" if isinstance(answer, Plan) else answer.value
    if isinstance(answer, RunStatus):
        steps = [f"{each.member} behind {each.progress.step}" for each in answer.members if each.progress.step]
        places = f"{len(answer.members)} of {answer.servers + answer.workers}"
        return ", ".join([answer.state.value, places, *steps])
    if isinstance(answer, asks.Heard) and answer.stop_reason:
        behind = "" if answer.last_step is None else f" behind {answer.last_step}"
        return f"{answer.state.value}, stops{behind} for {answer.stop_reason}"
    if isinstance(answer, asks.Heard | asks.End):
        return f"{answer.state.value}{f': {answer.reason}' if answer.reason else ''}"
    return "nothing" if answer is None else str(answer)


class Play:
    """A scenario that is played where a coordinator answers."""

    def __init__(self, where: Place, pool: ThreadPoolExecutor) -> None:
        self._place = where
        self._pool = pool
        self._desk = Desk(coordinator_of(JOB))
        self._controls: dict[str, Control] = {}
        self._later: dict[str, Future[str]] = {}
        where.opens(self._desk)

    def line(self, text: str) -> None:
        """Do what a line says, and compare."""
        if text.startswith("coordinator"):
            if text.endswith("goes"):
                self._place.closes()
            else:
                self._place.opens(self._desk)
            return
        said, arrow, expected = [*(part.strip() for part in re.split("(->|~>)", text)), "", ""][:3]
        found = re.fullmatch(r"(\w+(?: \d)?) (later )?(\w+) ?(.*)", said)
        assert found is not None, text
        who, is_later, verb, words = found.groups()
        if verb == "hears":
            self._compare(text, self._later.pop(who).result(timeout=PATIENCE_S), expected)
        elif is_later:
            self._later[who] = self._pool.submit(self._said, who, verb, words)
        elif arrow == "~>":
            wait_for(lambda: fnmatch.fnmatchcase(self._said(who, verb, words), expected), text)
        else:
            self._compare(text, self._said(who, verb, words), expected)

    def _compare(self, text: str, answer: str, expected: str) -> None:
        assert fnmatch.fnmatchcase(answer, expected), f"{text}: {answer}"

    def _said(self, who: str, verb: str, words: str) -> str:
        if who not in self._controls:
            self._controls[who] = self._place.control(who)
        ask, timeout_s = ask_of(who, verb, words)
        try:
            return shown(self._controls[who].call(ask, timeout_s))
        except TaihuError as error:
            is_lost = isinstance(error, MemberLostError) and not error.was_said
            return "nobody" if is_lost else f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """End all ways."""
        for control in self._controls.values():
            control.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_has_the_same_answers_whatever_carries_them(kind: str, name: str) -> None:
    with place(kind) as where, ThreadPoolExecutor(4) as pool, ExitStack() as ending:
        play = Play(where, pool)
        ending.callback(play.close)
        for line in filter(None, map(str.strip, SCENARIOS[name].splitlines())):
            play.line(line)


class Opening(SystemClock):
    """A clock by which a coordinator comes when somebody has waited for it three times."""

    def __init__(self, opens: Callable[[], None]) -> None:
        self._opens = opens
        self.slept: list[float] = []

    @override
    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 3:
            self._opens()
        super().sleep(seconds)


@pytest.mark.parametrize("kind", KINDS)
def test_members_ask_until_a_coordinator_is_there(kind: str) -> None:
    desk = Desk(coordinator_of(JOB, Terms(recovers=True), 9), Begun(9, 3))
    with place(kind) as where:
        clock = Opening(lambda: where.opens(desk))
        server = MemberId(Role.SERVER, 0)
        with CoordinatorClient(where.control("server 0"), JOB, server, 5, clock) as client:
            assert client.begin() == Begun(9, 3)
            assert clock.slept[:3] == [0.05, 0.1, 0.2]
            assert client.join(address="here:1", begun=Begun(9, 3)) == ("here:1",)


@pytest.mark.parametrize("kind", KINDS)
def test_who_never_gets_an_answer_is_told_how_long_it_has_tried(kind: str) -> None:
    with place(kind) as where:
        job = JOB.model_copy(update={"cluster": JOB.cluster.model_copy(update={"connect_timeout_s": 0.3})})
        with (
            CoordinatorClient(where.control("worker 0"), job, MemberId(Role.WORKER, 0), 5) as client,
            pytest.raises(PeerUnreachableError, match=r"server 0, coordinator .*: no answer within 0\.3 s"),
        ):
            client.join(layout=layout_of(3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_way_that_is_closed_tells_that_its_member_takes_no_part(kind: str) -> None:
    with place(kind) as where:
        where.opens(Desk(coordinator_of(JOB)))
        control = where.control("worker 1")
        control.call(GetStatus(), PATIENCE_S)
        control.close()
        with pytest.raises(StaleError, match="worker 1 takes no part any more"):
            control.call(GetStatus(), PATIENCE_S)


class Slow:
    """Whoever never answers in time."""

    def answer(self, ask: object, call: Call) -> object:
        left_s = call.left_s()
        assert left_s < 1.0
        raise PeerUnreachableError(f"nobody came within {left_s > 0}")


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_answers_knows_how_long_its_answer_is_of_use(kind: str) -> None:
    with place(kind) as where:
        where.opens(Slow())  # type: ignore[arg-type]
        control = where.control("worker 1")
        with pytest.raises(PeerUnreachableError, match="nobody came within True") as raised:
            control.call(GetStatus(), 0.9)
        assert raised.value.was_said
        control.close()
