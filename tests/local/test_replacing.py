"""Processes that were killed are started again, each after its own pause."""

from __future__ import annotations

from taihu.local.processes.replacing import Replacing


def test_one_that_dies_again_and_again_does_not_hold_up_the_others() -> None:
    replacing = Replacing(100)
    for now in (0.0, 1.0, 2.0, 3.0):
        assert replacing.plan("worker 1", now, step=0)
    assert replacing.plan("server 0", 3.0, step=0)
    assert replacing.awaited == {"worker 1", "server 0"}
    assert replacing.due(3.4) == []
    assert replacing.due(3.6) == ["server 0"]
    assert replacing.due(4.9) == []
    assert replacing.due(5.1) == ["worker 1"]
    assert not replacing.awaited


def test_all_of_them_together_have_a_bound() -> None:
    replacing = Replacing(2)
    assert [replacing.plan(name, 0.0, step=0) for name in ("a", "b", "c")] == [True, True, False]
    assert replacing.awaited == {"a", "b"}


def test_one_that_is_given_up_is_neither_awaited_nor_started() -> None:
    replacing = Replacing(2)
    assert replacing.plan("server 0", 0.0, step=0)
    replacing.give_up("server 0")
    replacing.give_up("worker 0")
    assert not replacing.awaited
    assert not replacing.due(99.0)
