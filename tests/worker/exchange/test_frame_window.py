"""Frames ahead of their answers, in any order of both."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.worker.exchange.servers.answers import FramesUnderWay


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=60))
def test_frames_go_in_order_as_soon_as_fewer_than_the_window_are_unanswered(frames: int, events: list[bool]) -> None:
    window = FramesUnderWay[int](frames)
    put, went, answered = 0, list[int](), 0
    for is_put in events:
        if is_put:
            went += [put] if window.push(put, put) else []
            put += 1
        elif answered < len(went):
            answered += 1
            _, admitted = window.answered(went[answered - 1])
            went += [] if admitted is None else [admitted]
        assert went == list(range(min(put, answered + frames)))
