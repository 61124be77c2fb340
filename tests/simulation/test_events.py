"""The virtual clock: calls in the order of their instants, and work one after another; and no other clock."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from taihu.simulation.events import EventQueue, WorkQueue

INSTANTS = st.integers(0, 20).map(float)


@given(st.lists(INSTANTS, max_size=30))
def test_calls_come_by_their_instants_and_those_of_one_in_the_order_in_which_they_were_put(at: list[float]) -> None:
    queue, seen = EventQueue(), list[tuple[float, int]]()
    for number, when in enumerate(at):
        queue.at(when, lambda number=number: seen.append((queue.now, number)))
    queue.run()
    assert seen == sorted((when, number) for number, when in enumerate(at))


def test_a_call_may_put_others_and_end_the_run() -> None:
    queue, seen = EventQueue(), list[float]()

    def again() -> None:
        seen.append(queue.now)
        queue.at(queue.now + 1.0, again)
        queue.is_over = len(seen) == 3

    queue.at(0.5, again)
    queue.run()
    assert (seen, queue.handled) == ([0.5, 1.5, 2.5], 3)


@given(st.lists(st.tuples(INSTANTS, INSTANTS), max_size=20))
def test_work_is_done_one_piece_after_another(pieces: list[tuple[float, float]]) -> None:
    queue, free = WorkQueue(), 0.0
    for start, seconds in pieces:
        done = queue.book(start, seconds)
        assert done == max(start, free) + seconds
        free = done
    assert queue.busy == sum(seconds for _, seconds in pieces)


def test_the_simulator_has_no_clock_thread_or_file() -> None:
    folder = Path(__file__).parents[2] / "taihu" / "simulation"
    impure = re.compile(r"^(?:from|import) (time|threading|concurrent|asyncio|socket|os|io|pathlib|grpc)\b", re.M)
    assert not [path.name for path in folder.glob("*.py") if impure.search(path.read_text())]
