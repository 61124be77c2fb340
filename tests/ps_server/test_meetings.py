"""Meetings of workers: between steps, and at the end."""

from __future__ import annotations

from taihu.ps_server.meetings import Meetings


def test_a_meeting_is_over_when_all_have_come_and_the_next_begins() -> None:
    meetings = Meetings(2)
    assert meetings.come(0) == 0
    assert not meetings.is_over(0)
    assert meetings.come(1) == 0
    assert meetings.is_over(0)
    assert meetings.all_came(0)
    assert meetings.come(1) == 1
    assert not meetings.is_over(1)


def test_who_has_ended_is_not_waited_for_and_the_meeting_is_no_whole_one() -> None:
    meetings = Meetings(3)
    meetings.come(0)
    meetings.come(2)
    meetings.end(1)
    assert meetings.is_over(0)
    assert not meetings.all_came(0)
    assert not meetings.all_ended
    meetings.end(0)
    meetings.end(2)
    assert meetings.all_ended
