"""Members that live and do not come back are found, each after its time; those that start are left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.local.processes.stuck import LastingNames, LateMembers, StuckMembers

NAMES = ("server 0", "server 1", "worker 0", "worker 1")


def test_who_has_not_come_yet_is_not_stuck() -> None:
    stuck = StuckMembers("server 0", 5.0)
    assert [
        stuck.look(now, missing) for now, missing in ((0.0, ["worker 1"]), (9.0, ["worker 1"]), (20.0, None))
    ] == [
        [],
        [],
        [],
    ]


def test_who_does_not_come_back_is_stuck_once_in_its_time() -> None:
    stuck = StuckMembers("server 0", 5.0)
    looks: list[tuple[float, list[str]]] = [
        (0.0, []),
        (1.0, ["worker 1"]),
        (6.0, ["worker 1"]),
        (6.5, ["worker 1"]),
        (7.0, ["worker 1"]),
    ]
    assert [stuck.look(*each) for each in looks] == [[], [], [], ["worker 1"], []]
    assert stuck.look(13.0, ["worker 1"]) == ["worker 1"]


def test_a_coordinator_that_does_not_answer_is_stuck() -> None:
    stuck = StuckMembers("worker 0", 5.0)
    looks: list[tuple[float, list[str] | None]] = [
        (0.0, []),
        (1.0, None),
        (2.0, []),
        (3.0, None),
        (7.9, None),
        (8.1, None),
    ]
    assert [stuck.look(*each) for each in looks] == [[], [], [], [], [], ["worker 0"]]


@given(st.lists(st.none() | st.lists(st.sampled_from(NAMES), unique=True), max_size=30), st.integers(1, 5))
def test_only_who_was_awaited_all_the_time_is_given_up(seen: list[list[str] | None], after: int) -> None:
    stuck = StuckMembers("server 0", after + 0.5)
    awaited = [["server 0"] if missing is None else missing for missing in seen]
    for now, missing in enumerate(seen):
        for name in stuck.look(float(now), missing):
            assert all(name in each for each in awaited[max(0, now - after) : now + 1])
            assert [] in seen[:now]


def test_a_run_that_is_known_to_have_begun_need_not_have_been_seen_complete() -> None:
    stuck = StuckMembers("server 0", 5.0)
    assert not stuck.look(0.0, None)
    stuck.begin()
    assert [stuck.look(now, None) for now in (1.0, 5.9, 6.1)] == [[], [], ["server 0"]]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=20))
def test_who_lives_long_after_another_one_has_ended_is_late(looks: list[tuple[int, bool]]) -> None:
    late, now, first = LateMembers(6.0), 0, None
    for after, ended in looks:
        now += after
        if ended and first is None:
            first = now
        assert late.look(float(now), ended=ended) == (ended and first is not None and now - first >= 6)


@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.sampled_from(NAMES))), max_size=30))
def test_names_last_while_every_look_finds_them_and_begin_anew_then(looks: list[tuple[int, set[str]]]) -> None:
    lasting, now, seen = LastingNames(5.0), 0, dict[str, int]()
    for after, names in looks:
        now += after
        seen = {name: seen.get(name, now) for name in names}
        expected = {name for name, since in seen.items() if now - since > 5}
        seen = {name: since for name, since in seen.items() if name not in expected}
        assert set(lasting.look(float(now), names)) == expected
