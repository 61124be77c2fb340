"""Which parameters stage 3 of ZeRO holds: a scenario of one step, and any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker.parameter_window import ParameterWindow, Todo


def test_a_step_of_three_groups() -> None:
    window = ParameterWindow()
    assert window.use(2, 1) == Todo(ask=(2, 1))
    assert not window.is_here(2)
    assert window.arrived(2) == Todo()
    assert window.is_here(2)
    assert window.arrived(1) == Todo()
    assert window.use(1, 0) == Todo(ask=(0,), drop=(2,))
    assert window.arrived(0) == Todo()
    # Backward of the last two reads what forward had.
    assert window.use(0, 1) == Todo()
    assert window.pushed(0) == Todo(drop=(0,))
    assert window.use(1, 2) == Todo(ask=(2,))
    assert window.summed(0) == Todo()
    assert window.pushed(1) == Todo(drop=(1,))
    assert window.arrived(2) == Todo()
    assert window.use(2, 2) == Todo()
    assert window.pushed(2) == Todo(drop=(2,))
    # The next forward begins with what backward ended with, as soon as it is summed.
    assert window.summed(1) == Todo()
    assert window.summed(2) == Todo(ask=(2,))
    assert window.use(2, 1) == Todo(ask=(1,))


def test_what_was_not_wanted_after_all_is_dropped_when_it_comes() -> None:
    window = ParameterWindow()
    window.use(0, 1)
    window.arrived(0)
    assert window.use(2, 1) == Todo(ask=(2,), drop=(0,))
    assert window.use(2, 2) == Todo()
    assert window.is_asked(1)
    assert window.arrived(1) == Todo(drop=(1,))
    assert not window.is_here(1)


def test_all_are_kept_while_all_are_wanted() -> None:
    window = ParameterWindow()
    window.keep_all = True
    for group in range(3):
        window.use(group, group)
        assert window.arrived(group) == Todo()
    assert all(map(window.is_here, range(3)))
    window.keep_all = False
    assert window.use(0, 1) == Todo(drop=(2,))


class Windows(RuleBasedStateMachine):
    """Any order of events; the machine keeps its own book of which memory is written."""

    GROUPS = 5

    def __init__(self) -> None:
        super().__init__()
        self.window = ParameterWindow()
        self.under_way: list[int] = []
        self.written: set[int] = set()
        self.summing: list[int] = []
        self.wanted: set[int] = set()

    def do(self, todo: Todo) -> None:
        self.written.difference_update(todo.drop)
        for group in todo.ask:
            assert group not in self.under_way
            assert group not in self.summing
            assert group not in self.written
        self.under_way += todo.ask

    @rule(group=st.integers(0, GROUPS - 1), following=st.integers(0, GROUPS - 1))
    def use(self, group: int, following: int) -> None:
        self.wanted = {group, following}
        self.do(self.window.use(group, following))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(group)
        self.written.add(group)
        self.do(self.window.arrived(group))

    @precondition(lambda self: any(map(self.window.is_here, range(self.GROUPS))))
    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from([g for g in range(self.GROUPS) if self.window.is_here(g)]))
        self.do(self.window.pushed(group))
        self.summing.append(group)

    @precondition(lambda self: self.summing)
    @rule(data=st.data())
    def sum(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.summing))
        self.summing.remove(group)
        self.do(self.window.summed(group))

    @invariant()
    def only_what_is_wanted_is_held(self) -> None:
        here = {group for group in range(self.GROUPS) if self.window.is_here(group)}
        assert here == self.written
        assert here <= self.wanted
        for group in self.wanted:
            assert group in here or group in self.under_way or group in self.summing


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
