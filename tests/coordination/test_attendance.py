"""Agents that come, go, fall silent and are slow: who runs which workers, and when they move."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taihu.core.coordination.agents.attendance import Attendance, Lost

ANNA, BERT, CARL = 1, 2, 3
NAMES = {ANNA: "anna", BERT: "bert", CARL: "carl"}


class Machines:
    """Agents at a coordinator, and the time."""

    def __init__(self, ranks: int = 4, least: int = 1) -> None:
        self.attendance = Attendance(range(ranks), least=least, silent_after_s=2.0, gone_after_s=0.5)
        self.now = 100.0

    def come(self, *lives: int, leaves: bool = False, runs: Sequence[int] | None = None) -> list[Lost]:
        """They call once each, and the coordinator looks."""
        for life in lives:
            own = self.attendance.ranks_of(life) if runs is None else runs
            self.attendance.attends(life, NAMES[life], own, leaves=leaves, now=self.now)
        return self.attendance.look(self.now)

    def pass_(self, seconds: float, *calling: int) -> list[Lost]:
        """Time passes, in which some call now and then."""
        lost = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            lost += self.come(*calling)
        return lost

    @property
    def runs(self) -> dict[str, tuple[int, ...]]:
        return {each.name: each.ranks for each in self.attendance.agents(self.now)}


def test_all_ranks_are_shared_out_when_nobody_else_has_come_for_a_while() -> None:
    machines = Machines()
    machines.come(ANNA)
    machines.pass_(1.0, ANNA)
    machines.come(BERT)
    machines.pass_(2.5, ANNA, BERT)
    assert machines.runs == {"anna": (), "bert": ()}
    assert machines.attendance.awaited == "others that may come"
    machines.pass_(1.0, ANNA, BERT)
    assert machines.runs == {"anna": (0, 2), "bert": (1, 3)}
    assert not machines.attendance.awaited


def test_nobody_is_waited_for_where_each_rank_has_an_agent_of_its_own() -> None:
    machines = Machines(ranks=2)
    machines.come(ANNA, BERT)
    assert machines.runs == {"anna": (0,), "bert": (1,)}


def test_no_rank_runs_with_fewer_agents_than_the_job_asks_for() -> None:
    machines = Machines(least=2)
    machines.pass_(30.0, ANNA)
    assert machines.runs == {"anna": ()}
    assert machines.attendance.awaited == "1 more agent"


def begun(ranks: int = 4, *lives: int) -> Machines:
    machines = Machines(ranks)
    machines.come(*lives)
    machines.pass_(4.0, *lives)
    return machines


def test_the_ranks_of_a_silent_agent_go_to_the_others_at_once() -> None:
    machines = begun(4, ANNA, BERT)
    lost = machines.pass_(2.5, ANNA)
    assert lost == [Lost(1, "bert"), Lost(3, "bert")]
    assert machines.runs == {"anna": (0, 1, 2, 3)}


def test_a_loss_is_told_once_when_no_generation_goes_on() -> None:
    machines = begun(4, ANNA, BERT)
    assert not machines.attendance.settle()
    machines.pass_(2.5, ANNA)
    assert machines.attendance.settle()
    assert not machines.attendance.settle()


def test_who_hangs_up_and_does_not_call_again_is_gone_sooner() -> None:
    machines = begun(4, ANNA, BERT)
    call = machines.attendance.attends(BERT, "bert", (1, 3), now=machines.now)
    machines.attendance.hung_up(BERT, call, machines.now)
    assert machines.pass_(0.4, ANNA) == []
    assert [each.rank for each in machines.pass_(0.2, ANNA)] == [1, 3]


def test_who_calls_again_was_not_gone() -> None:
    machines = begun(4, ANNA, BERT)
    old = machines.attendance.attends(BERT, "bert", (1, 3), now=machines.now)
    machines.attendance.attends(BERT, "bert", (1, 3), now=machines.now)
    machines.attendance.hung_up(BERT, old, machines.now)
    assert machines.pass_(1.5, ANNA) == []


def test_nobody_is_lost_while_the_coordinator_could_not_be_called() -> None:
    machines = begun(4, ANNA, BERT)
    call = machines.attendance.attends(BERT, "bert", (1, 3), now=machines.now)
    machines.attendance.closes()
    machines.attendance.hung_up(BERT, call, machines.now)
    machines.now += 60.0
    machines.attendance.opens(machines.now)
    assert machines.attendance.look(machines.now) == []
    assert machines.pass_(1.4, ANNA) == []  # it has to connect, and each message may be late
    assert [each.rank for each in machines.pass_(0.2, ANNA)] == [1, 3]


def test_who_hung_up_before_that_is_gone_as_soon_as_it_does_not_call_again() -> None:
    machines = begun(4, ANNA, BERT)
    call = machines.attendance.attends(BERT, "bert", (1, 3), now=machines.now)
    machines.attendance.hung_up(BERT, call, machines.now)
    machines.attendance.closes()
    machines.now += 1.0
    machines.attendance.opens(machines.now)
    assert [each.rank for each in machines.come(ANNA)] == [1, 3]


def test_an_agent_that_joins_takes_over_when_no_generation_goes_on() -> None:
    machines = begun(4, ANNA, BERT)
    machines.pass_(0.5, ANNA, BERT, CARL)
    assert not machines.attendance.move(machines.now)
    assert machines.runs["carl"] == ()
    machines = begun(4, ANNA)
    machines.pass_(1.5, ANNA, CARL)
    assert machines.attendance.move(machines.now) == "agent carl joins"
    assert machines.runs == {"anna": (0, 1, 2, 3), "carl": ()}
    assert machines.attendance.settle()
    assert machines.runs == {"anna": (0, 1), "carl": (2, 3)}
    assert not machines.attendance.move(machines.now)
    assert not machines.attendance.settle()


def test_a_third_agent_that_shortens_no_step_stands_by() -> None:
    machines = begun(4, ANNA, BERT)
    machines.pass_(5.0, ANNA, BERT, CARL)
    assert not machines.attendance.move(machines.now)
    assert [each.rank for each in machines.pass_(2.5, ANNA, CARL)] == [1, 3]
    assert machines.runs == {"anna": (0, 2), "carl": (1, 3)}


def test_an_agent_that_leaves_gives_its_ranks_away() -> None:
    machines = begun(4, ANNA, BERT)
    machines.come(BERT, leaves=True)
    assert machines.attendance.move(machines.now) == "agent bert leaves"
    assert machines.runs["bert"] == (1, 3)
    assert machines.attendance.settle()
    assert machines.runs == {"anna": (0, 1, 2, 3), "bert": ()}


def test_the_last_agent_that_leaves_leaves_ranks_without_one() -> None:
    machines = begun(2, ANNA)
    machines.come(ANNA, leaves=True)
    assert machines.attendance.settle()
    assert machines.runs == {"anna": ()}
    assert machines.attendance.awaited == "1 more agent"
    machines.come(BERT)
    assert machines.runs["bert"] == (0, 1)


def test_a_coordinator_that_knows_of_nobody_learns_who_runs_what() -> None:
    machines = Machines()
    machines.come(ANNA, runs=(0, 3))
    machines.come(BERT, runs=(1, 3))
    assert machines.runs == {"anna": (0, 3), "bert": (1,)}
    machines.pass_(3.1, ANNA, BERT)
    assert machines.runs == {"anna": (0, 3), "bert": (1, 2)}


def test_a_process_is_a_worker_where_its_agent_runs_that() -> None:
    machines = begun(4, ANNA, BERT)
    takes = machines.attendance.takes_place
    assert takes(0, ANNA)
    assert not takes(0, BERT)


def test_a_process_without_an_agent_takes_its_rank_from_one() -> None:
    machines = begun(4, ANNA, BERT)
    assert machines.attendance.takes_place(0, 0)
    assert machines.runs == {"anna": (2,), "bert": (1, 3)}
    machines.pass_(2.5, ANNA)
    assert machines.runs == {"anna": (1, 2, 3)}


def test_a_stranger_takes_no_rank_from_an_agent() -> None:
    machines = begun(4, ANNA, BERT)
    assert not machines.attendance.takes_place(0, 0, is_known=False)
    assert machines.runs == {"anna": (0, 2), "bert": (1, 3)}
    fresh = Machines()
    assert fresh.attendance.takes_place(0, 0, is_known=False)
    fresh.come(ANNA)
    fresh.pass_(4.0, ANNA)
    assert fresh.runs == {"anna": (0, 1, 2, 3)}


def test_a_machine_that_has_given_all_away_stays_slow() -> None:
    machines = begun(3, ANNA, BERT)
    assert machines.runs == {"anna": (0, 2), "bert": (1,)}
    machines.attendance.measured({0: 8.0, 2: 8.0, 1: 0.5}, 60)
    assert machines.attendance.move(machines.now)
    machines.attendance.settle()
    assert machines.runs == {"anna": (), "bert": (0, 1, 2)}
    machines.attendance.measured(dict.fromkeys(range(3), 1.5), 120)
    assert not machines.attendance.move(machines.now)
    assert not machines.attendance.settle()


def test_times_count_again_soon_behind_a_step_that_all_have_gone_back_to() -> None:
    machines = begun(4, ANNA, BERT)
    machines.attendance.measured(dict.fromkeys(range(4), 1.0), 500)
    machines.pass_(2.5, ANNA)
    machines.come(BERT)
    machines.pass_(1.5, ANNA, BERT)
    assert machines.attendance.settle()
    for step in (3, 60):
        machines.attendance.measured({0: 6.0, 1: 6.0, 2: 2.0, 3: 2.0}, step)
    assert machines.attendance.move(machines.now) == "workers move to faster machines"


def test_who_looks_on_sees_the_ranks_of_each_agent_and_how_long_one_takes_it() -> None:
    machines = begun(3, ANNA, BERT)
    assert machines.attendance.shared_out == "anna 0, 2; bert 1"
    assert [each.work_s for each in machines.attendance.agents(machines.now)] == [0.0, 0.0]
    # Two of them share a machine, so that either takes twice as long as it would alone.
    machines.attendance.measured({0: 8.0, 2: 8.0, 1: 0.5}, 60)
    assert [each.work_s for each in machines.attendance.agents(machines.now)] == [4.0, 0.5]


def test_no_agent_gets_a_rank_that_has_a_process_without_one() -> None:
    machines = Machines()
    assert machines.attendance.takes_place(0, 0)
    machines.come(ANNA)
    machines.pass_(4.0, ANNA)
    assert machines.runs == {"anna": (1, 2, 3)}
    assert machines.attendance.takes_place(0, 0)


@pytest.mark.parametrize(("slow_s", "expected"), [(0.8, {"anna": 2, "bert": 5, "carl": 5}), (0.301, None)])
def test_a_slow_machine_gives_ranks_away(slow_s: float, expected: dict[str, int] | None) -> None:
    machines = begun(12, ANNA, BERT, CARL)
    each = {ANNA: slow_s, BERT: 0.3, CARL: 0.3}

    def measure(step: int) -> None:
        machines.attendance.measured(
            {rank: 4 * each[life] for life in each for rank in machines.attendance.ranks_of(life)}, step
        )

    measure(49)
    assert not machines.attendance.move(machines.now)
    measure(50)
    if expected is None:
        assert not machines.attendance.move(machines.now)
        return
    assert machines.attendance.move(machines.now) == "workers move to faster machines"
    assert machines.attendance.settle()
    assert {name: len(ranks) for name, ranks in machines.runs.items()} == expected


def test_steps_that_are_short_are_not_worth_a_move() -> None:
    machines = begun(12, ANNA, BERT)
    machines.attendance.measured({rank: 0.012 if rank % 2 else 0.003 for rank in range(12)}, 100)
    assert not machines.attendance.move(machines.now)


def test_times_before_a_move_do_not_lead_to_another_one() -> None:
    machines = begun(4, ANNA, BERT)
    slow = {rank: 3.0 if rank in machines.attendance.ranks_of(ANNA) else 1.0 for rank in range(4)}
    machines.attendance.measured(slow, 60)
    assert machines.attendance.move(machines.now)
    machines.attendance.settle()
    machines.attendance.measured(dict.fromkeys(range(4), 100.0) | {0: 0.1}, 100)
    assert not machines.attendance.move(machines.now)


def test_a_coordinator_that_is_new_waits_for_who_runs_what_nobody_has_said_yet() -> None:
    """It has another agent than the one that runs a rank take it over else, and what that holds of a step is lost."""
    machines = Machines(ranks=2)
    machines.come(ANNA, runs=[0])
    machines.come(BERT, runs=[])
    assert machines.runs == {"anna": (0,), "bert": ()}
    machines.come(CARL, runs=[1])
    assert machines.runs == {"anna": (0,), "bert": (), "carl": (1,)}


def test_a_rank_that_was_known_to_be_lost_is_waited_for_by_nobody() -> None:
    machines = begun(2, ANNA, BERT)
    machines.come(CARL)
    assert machines.pass_(2.5, ANNA, CARL) == [Lost(1, "bert")]
    assert machines.runs == {"anna": (0,), "carl": (1,)}


def test_those_that_stand_by_are_told_of_the_end_unless_they_are_gone() -> None:
    machines = begun(1, ANNA, BERT, CARL)
    machines.come(CARL, leaves=True)
    assert machines.runs == {"anna": (0,), "bert": (), "carl": ()}
    assert not machines.attendance.all_know_end  # anna hears of it from her worker, and carl leaves
    machines.attendance.hears_end(BERT)
    assert machines.attendance.all_know_end


def test_nobody_waits_for_one_that_stood_by_and_is_gone() -> None:
    machines = begun(1, ANNA, BERT)
    assert not machines.attendance.all_know_end
    machines.pass_(2.5, ANNA)
    assert machines.attendance.all_know_end
