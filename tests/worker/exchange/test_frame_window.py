"""Frames ahead of their answers, in any order of both."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.worker.exchange.servers.answers import FrameWindow


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=60))
def test_frames_go_in_order_as_soon_as_fewer_than_the_window_are_unanswered(frames: int, events: list[bool]) -> None:
    window = FrameWindow[int](frames)
    put, went, answered = 0, list[int](), 0
    for is_put in events:
        if is_put:
            went += window.put(put)
            put += 1
        elif answered < len(went):
            answered += 1
            went += window.answered()
        assert went == list(range(min(put, answered + frames)))
