"""All workers of a run that stops end after the same step, in whatever order messages and steps happen."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.coordination.membership import stopping
from taihu.core.coordination.membership.stopping import StopAgreement, StopNotice

TOTAL = 5


@dataclass
class Worker:
    """A simulated worker.

    Attributes:
        pushed: the last step whose gradients it has pushed; it stands behind this one or in the next.
        place: `between` steps, `in` one, `held` until all know the last step, or at its `end`.
        beat: what is on its way: `None`, a heartbeat (the last step that the worker knew), or an answer.
    """

    rank: int
    pushed: int = 0
    place: str = "between"
    beat: tuple[object, ...] | None = None


class Simulation:
    """Workers that train in lockstep, and the coordinator; every action is one that can happen now."""

    def __init__(self, workers: int) -> None:
        self.agreement = StopAgreement(workers)
        self.notices = [StopNotice() for _ in range(workers)]
        self.workers = [Worker(rank) for rank in range(workers)]

    def clone(self) -> Simulation:
        twin = copy.copy(self)
        twin.agreement = copy.deepcopy(self.agreement)
        twin.notices = [copy.copy(notice) for notice in self.notices]
        twin.workers = [copy.copy(worker) for worker in self.workers]
        return twin

    def key(self) -> tuple[object, ...]:
        told = tuple((notice.reason, notice.last_step) for notice in self.notices)
        return self.agreement.reason, self.agreement.last_step, self.agreement.agreed, told, str(self.workers)

    def actions(self) -> Iterator[tuple[str, int]]:
        """Steps of the training threads, then what heartbeats and the one who asks do."""
        yield from (("train", worker.rank) for worker in self.workers if self.can_train(worker))
        yield from (("beat", worker.rank) for worker in self.workers)
        if not self.agreement.reason:
            yield "ask", 0

    def can_train(self, worker: Worker) -> bool:
        if worker.place == "in":
            # The forward reads what the sum of the step before led to.
            return all(other.pushed >= worker.pushed for other in self.workers)
        return worker.place == "between" or (worker.place == "held" and self.agreement.agreed)

    def act(self, action: str, rank: int) -> None:
        if action == "ask":
            self.agreement.ask("tired")
        elif action == "beat":
            self._beat(self.workers[rank], self.notices[rank])
        else:
            self._train(self.workers[rank], self.notices[rank])

    def _train(self, worker: Worker, notice: StopNotice) -> None:
        match worker.place:
            case "in":
                worker.pushed += 1
                worker.place = "between"
            case "held":
                notice.heard("tired", self.agreement.last_step)
                worker.place = "between"
            case _ if worker.pushed >= notice.last_of(TOTAL):
                worker.place = "end"
            case _ if worker.rank == 0 and notice.must_fix(worker.pushed, TOTAL):
                self.agreement.fix(worker.pushed)
                worker.place = "held"
            case _:
                worker.place = "in"

    def _beat(self, worker: Worker, notice: StopNotice) -> None:
        match worker.beat:
            case None:
                worker.beat = ("asks", notice.last_step or 0)
            case ("asks", int(known)):
                self.agreement.learnt(worker.rank, known)
                worker.beat = ("answer", self.agreement.reason, self.agreement.last_step)
            case (_, str(reason), last_step):
                assert last_step is None or isinstance(last_step, int)
                notice.heard(reason, last_step)
                worker.beat = None

    def check(self) -> None:
        """Nobody has begun a step after one that another has ended with, and nobody waits for ever."""
        ends = {worker.pushed for worker in self.workers if worker.place == "end"}
        assert len(ends) <= 1, "workers end after different steps"
        begun = max(worker.pushed + (worker.place == "in") for worker in self.workers)
        assert not ends or begun <= min(ends), "a step was begun that not all take part in"
        ahead = self.clone()
        for _ in range(3 * 3):
            for worker in ahead.workers:
                ahead.act("beat", worker.rank)
        stuck = not any(ahead.can_train(worker) for worker in ahead.workers)
        assert not stuck or all(worker.place == "end" for worker in ahead.workers), "all wait for each other"


def explore(workers: int) -> set[tuple[int, int | None]]:
    """Check every state that can be reached; the steps with which runs end, each with the agreed one."""
    start = Simulation(workers)
    seen, todo, outcomes = {start.key()}, [start], set()
    while todo:
        state = todo.pop()
        state.check()
        if all(worker.place == "end" for worker in state.workers):
            outcomes.add((state.workers[0].pushed, state.agreement.last_step))
        for action, rank in state.actions():
            following = state.clone()
            following.act(action, rank)
            if following.key() not in seen:
                seen.add(following.key())
                todo.append(following)
    return outcomes


def test_two_workers_end_after_the_same_step_in_every_interleaving() -> None:
    outcomes = explore(2)
    assert outcomes == {(TOTAL, None), *((step, step) for step in range(3, TOTAL))}


def test_with_one_step_less_another_worker_has_gone_on_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_AHEAD", 1)
    with pytest.raises(AssertionError, match=r"workers end after different steps|a step was begun"):
        explore(2)


@given(st.integers(1, 4), st.lists(st.integers(0, 99), max_size=120))
@settings(max_examples=100)
def test_any_number_of_workers_ends_after_the_same_step(workers: int, choices: list[int]) -> None:
    state = Simulation(workers)
    for choice in choices:
        actions = list(state.actions())
        state.act(*actions[choice % len(actions)])
        state.check()


def test_a_run_is_not_stopped_before_its_first_step_nor_when_it_is_about_to_end() -> None:
    notice = StopNotice()
    assert not notice.must_fix(3, 100)
    notice.heard("tired", None)
    assert [step for step in range(8) if notice.must_fix(step, 7)] == [1, 2, 3, 4]
    notice.heard("tired", 6)
    assert not notice.must_fix(4, 7)
    assert (notice.last_of(7), notice.last_of(5)) == (6, 5)


def test_the_first_reason_and_the_first_last_step_stay() -> None:
    agreement = StopAgreement(2)
    agreement.ask("worker 1: interrupted by SIGTERM")
    agreement.ask("server 0: interrupted by SIGTERM")
    assert agreement.reason == "worker 1: interrupted by SIGTERM"
    assert (agreement.fix(7), agreement.fix(8)) == (9, 9)
    agreement.learnt(1, 8)
    assert not agreement.agreed
    agreement.learnt(1, 9)
    assert agreement.agreed


def test_a_stop_is_expected_once_anybody_wants_it() -> None:
    told: list[str] = []
    notice = StopNotice()
    notice.ask("worker 1: interrupted")  # nobody listens yet
    assert notice.expected
    notice = StopNotice()
    assert not notice.expected
    assert (notice.wish, notice.reason, notice.last_step) == ("", "", None)
    notice.on_wish = lambda: told.append(notice.wish)
    notice.ask("worker 1: interrupted")
    assert (notice.expected, told) == (True, ["worker 1: interrupted"])
    other = StopNotice()
    other.heard("server 0: interrupted", 9)
    assert (other.expected, other.wish, other.last_step) == (True, "", 9)
    other.heard("server 0: interrupted", None)
    assert other.last_step == 9
