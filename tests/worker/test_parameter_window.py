"""Which parameters stage 3 of ZeRO holds: a scenario of one step, and any order of events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.exchange.parameter_window import ParameterWindow, Todo, leading_groups


def test_a_step_of_three_groups() -> None:
    window = ParameterWindow()
    assert window.use(2, (1,)) == Todo(ask=(2, 1))
    assert (window.is_here(2), window.is_asked(2)) == (False, True)
    window.arrived(2)
    window.arrived(1)
    assert window.use(1, (0,)) == Todo(ask=(0,), drop=(2,))
    window.arrived(0)
    # The end of forward, and backward begins where it ended.
    assert window.use(0) == Todo(drop=(1,))
    assert window.use(0, (1,)) == Todo(ask=(1,))
    assert window.pushed(0) == Todo(drop=(0,))
    assert window.is_summing(0)
    window.arrived(1)
    assert window.use(1, (2,)) == Todo(ask=(2,))
    window.summed(0)
    assert window.pushed(1) == Todo(drop=(1,))
    window.arrived(2)
    assert window.use(2) == Todo()
    assert window.pushed(2) == Todo(drop=(2,))
    window.summed(2)
    # The next forward begins with what backward ended with, while the group behind is still summed.
    assert window.use(2, (1,)) == Todo(ask=(2, 1))
    assert window.is_summing(1)
    window.summed(1)
    window.arrived(1)
    window.arrived(2)
    assert window.use(1, (0,)) == Todo(ask=(0,), drop=(2,))


def test_what_stays_is_there_in_backward() -> None:
    window = ParameterWindow()
    window.use(2, (1,))
    window.arrived(2)
    window.arrived(1)
    assert window.use(1, (0,), staying=(2,)) == Todo(ask=(0,))
    window.arrived(0)
    # Group 2 has no room any more.
    assert window.use(0, staying=(1,)) == Todo(drop=(2,))
    assert window.use(0, (1,)) == Todo()
    window.pushed(0)
    assert window.use(1, (2,)) == Todo(ask=(2,))
    # What stays is not asked for.
    assert window.use(1, staying=(0, 3)) == Todo()


@given(st.permutations(range(6)), st.lists(st.integers(0, 9), min_size=6, max_size=6), st.integers(-5, 60))
def test_the_groups_beside_are_the_longest_beginning_that_fits(order: list[int], sizes: list[int], room: int) -> None:
    beginnings = [tuple(order[:length]) for length in range(7)]
    fitting = [each for each in beginnings if sum(sizes[group] for group in each) <= max(0, room)]
    longest = fitting[-1] if room >= 0 else ()
    assert leading_groups(order, sizes, room) == longest


class Windows(RuleBasedStateMachine):
    """Any order of events; the machine keeps its own book of which memory is written."""

    GROUPS = 5

    def __init__(self) -> None:
        super().__init__()
        self.window = ParameterWindow()
        self.under_way: list[int] = []
        self.written: set[int] = set()
        self.summing: list[int] = []
        self.current: int | None = None
        self.wanted: set[int] = set()

    def do(self, todo: Todo) -> None:
        self.written.difference_update(todo.drop)
        for group in todo.ask:
            assert group not in self.under_way
            assert group not in self.written
        self.under_way += todo.ask

    @property
    def is_waiting(self) -> bool:
        return self.current is not None and self.window.is_asked(self.current)

    @precondition(lambda self: not self.is_waiting and len(self.summing) < self.GROUPS)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        """What was asked for is used next, as the exchanges do."""
        self.current = data.draw(st.sampled_from(self.under_way or range(self.GROUPS)))
        any_groups = st.lists(st.integers(0, self.GROUPS - 1), max_size=2)
        following, staying = [*self.under_way, *data.draw(any_groups)], data.draw(any_groups)
        self.wanted = {self.current, *following, *self.written.intersection(staying)}
        self.do(self.window.use(self.current, following, staying))
        assert self.window.is_here(self.current) or self.is_waiting

    @property
    def arriving(self) -> list[int]:
        """What is under way and has been updated."""
        return [group for group in self.under_way if group not in self.summing]

    @precondition(lambda self: self.arriving)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.arriving))
        self.under_way.remove(group)
        self.written.add(group)
        self.window.arrived(group)

    @precondition(lambda self: self.current is not None and self.window.is_here(self.current))
    @rule()
    def push(self) -> None:
        assert self.current is not None
        self.do(self.window.pushed(self.current))
        self.summing.append(self.current)
        self.current = None

    @precondition(lambda self: self.summing)
    @rule(data=st.data())
    def sum(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.summing))
        self.summing.remove(group)
        self.window.summed(group)

    @invariant()
    def what_is_here_is_what_memory_holds(self) -> None:
        groups = range(self.GROUPS)
        assert {group for group in groups if self.window.is_here(group)} == self.written
        assert {group for group in groups if self.window.is_asked(group)} == set(self.under_way)
        assert {group for group in groups if self.window.is_summing(group)} == set(self.summing)
        assert self.written | set(self.under_way) <= self.wanted


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
