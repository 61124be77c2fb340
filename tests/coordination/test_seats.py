"""Servers that join, leave, hang up and come back: who has which place, and when their number changes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from taihu.core.base.errors import ConfigError
from taihu.core.coordination.servers import seats
from taihu.core.coordination.servers.seats import LostServer, Seats

ANNA, BERT, CARL = 1, 2, 3
NAMES = {ANNA: "anna", BERT: "bert", CARL: "carl"}


class Run:
    """A run with two servers of its own, those that join it, and the time."""

    def __init__(self, taken: int = 0) -> None:
        self.seats = Seats(2, taken=taken, silent_after_s=5.0, gone_after_s=1.0, unheard_after_s=3.0, awaited_s=15.0)
        self.now = 100.0
        self._calls: dict[int, int] = {}

    def call(self, *lives: int, claims: Mapping[int, int] | None = None) -> list[LostServer]:
        """They call once each, and the coordinator looks."""
        for life in lives:
            index = self.seats.index_of(life) if claims is None else claims.get(life, 0)
            self._calls[life] = self.seats.attends(life, NAMES[life], index, self.now)
        return self.seats.look(self.now)

    def pass_(self, seconds: float, *calling: int) -> list[LostServer]:
        """Time passes, in which some call now and then."""
        lost = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            lost += self.call(*calling)
        return lost

    def hang_up(self, life: int) -> None:
        self.seats.hung_up(life, self._calls[life], self.now)

    def begin_again(self, *calling: int) -> int:
        """The generation ends, some call again, and the next one begins; the number of its servers."""
        self.seats.ends()
        self.now += 0.1
        self.seats.settle()
        self.seats.opens(self.now)
        self.call(*calling)
        return self.seats.servers

    @property
    def places(self) -> dict[str, int]:
        return {each.name: each.place for each in self.seats.joined(self.now)}


def joined(*lives: int) -> Run:
    run = Run()
    run.call(*lives)
    run.begin_again(*lives)
    return run


def test_a_server_that_joins_has_a_place_behind_all_others_from_the_next_generation_on() -> None:
    run = Run()
    run.call(ANNA)
    assert (run.places, run.seats.servers) == ({"anna": 0}, 2)
    assert run.begin_again(ANNA) == 3
    assert run.places == {"anna": 2}


def test_servers_that_come_one_after_the_other_are_waited_for_together() -> None:
    run = Run()
    run.call(ANNA)
    run.pass_(0.8, ANNA)
    run.call(BERT)
    run.pass_(0.8, ANNA, BERT)
    assert run.seats.move(run.now) == ""
    run.pass_(0.3, ANNA, BERT)
    assert run.seats.move(run.now) == "server anna and bert joins"
    assert run.begin_again(ANNA, BERT) == 4
    assert run.seats.move(run.now) == ""


def test_a_place_between_others_that_is_left_goes_to_the_last_one() -> None:
    run = joined(ANNA, BERT, CARL)
    run.seats.leaves(2)
    assert run.places == {"anna": 2, "bert": 3, "carl": 4}
    assert run.begin_again(ANNA, BERT, CARL) == 4
    assert run.places == {"anna": 0, "bert": 3, "carl": 2}


def test_a_place_that_is_left_goes_to_who_comes_before_others_move() -> None:
    run = joined(ANNA, BERT)
    run.call(CARL)
    run.seats.leaves(2)
    assert run.begin_again(ANNA, BERT, CARL) == 4
    assert run.places == {"anna": 0, "bert": 3, "carl": 2}


def test_who_hangs_up_and_says_no_more_is_gone_and_the_run_goes_on_without_it() -> None:
    run = joined(ANNA, BERT)
    run.hang_up(ANNA)
    assert run.pass_(0.9, BERT) == []
    assert run.pass_(0.3, BERT) == [LostServer(2, "anna")]
    assert run.seats.is_vacant
    assert run.begin_again(BERT) == 3
    assert run.places == {"bert": 2}


def test_who_hangs_up_as_a_generation_ends_is_waited_for_by_nobody() -> None:
    run = joined(ANNA, BERT)
    run.hang_up(BERT)
    assert run.seats.has_lost
    assert run.begin_again(ANNA) == 3
    assert run.places["anna"] == 2


def test_a_server_that_hung_up_and_lives_joins_again() -> None:
    run = joined(ANNA)
    run.hang_up(ANNA)
    assert run.begin_again() == 2
    run.pass_(1.2, ANNA)
    assert run.seats.move(run.now) == "server anna joins"
    assert run.begin_again(ANNA) == 3


def test_who_is_only_slow_keeps_its_place() -> None:
    run = joined(ANNA, BERT)
    assert run.begin_again(ANNA) == 4
    run.pass_(0.5, BERT)
    assert run.begin_again(ANNA, BERT) == 4


def test_who_has_not_been_heard_yet_in_a_generation_has_longer() -> None:
    run = joined(ANNA, BERT)
    run.begin_again()
    assert run.pass_(2.8, BERT) == []
    assert run.pass_(0.5, BERT) == [LostServer(2, "anna")]


def test_silence_is_an_end_too() -> None:
    run = joined(ANNA, BERT)
    assert run.pass_(5.2, BERT) == [LostServer(2, "anna")]


def test_a_vacant_place_is_for_the_next_that_comes_at_once() -> None:
    run = joined(ANNA)
    run.hang_up(ANNA)
    run.pass_(1.2)
    run.call(BERT)
    assert run.places == {"bert": 2}
    assert not run.seats.is_vacant


def test_a_vacant_place_is_given_up_after_a_while() -> None:
    run = joined(ANNA)
    run.hang_up(ANNA)
    run.pass_(15.8)
    assert not run.seats.is_given_up
    run.pass_(0.5)
    assert run.seats.is_given_up


def test_who_had_a_place_before_the_coordinator_was_lost_says_so() -> None:
    run = Run(taken=2)
    assert run.seats.servers == 4
    run.call(BERT, claims={BERT: 3})
    run.call(ANNA, claims={ANNA: 2})
    assert run.places == {"anna": 2, "bert": 3}
    assert not run.seats.is_about_to_change


@pytest.mark.parametrize("claimed", [1, 5, 9])
def test_a_place_that_is_none_cannot_be_claimed(claimed: int) -> None:
    run = Run(taken=2)
    run.call(ANNA, claims={ANNA: claimed})
    assert run.places == {"anna": 2}  # a vacant one is for who comes


def test_who_may_be_which_server() -> None:
    run = joined(ANNA)
    takes = run.seats.takes_place
    assert [takes(0, 0), takes(1, 0), takes(2, 0)] == [True, True, False]
    assert [takes(2, ANNA), takes(1, ANNA), takes(2, BERT), takes(0, BERT)] == [True, False, False, False]


def test_changes_of_servers_are_no_failures() -> None:
    run = joined(ANNA)
    assert not run.seats.is_about_to_change
    run.seats.leaves(2)
    assert run.seats.is_about_to_change


def test_no_more_than_may_be_there_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "MOST_JOINED", 2)
    run = Run()
    run.call(ANNA, BERT)
    with pytest.raises(ConfigError, match="server carl: 2 servers have joined, and no more may"):
        run.call(CARL)


def test_nobody_is_taken_for_gone_because_generations_follow_each_other() -> None:
    run = joined(ANNA, BERT)
    run.begin_again()
    assert run.begin_again() == 4


def test_those_that_have_no_place_are_told_of_the_end_unless_they_are_gone() -> None:
    run = joined(ANNA)
    run.call(ANNA, BERT, CARL)
    assert not run.seats.all_know_end
    run.seats.hears_end(BERT)
    assert not run.seats.all_know_end
    run.hang_up(CARL)
    assert run.seats.all_know_end
