"""Log lines of refusals: few of each kind, and the number of those left out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.set_clock import SetClock

from taihu.core.wire.serving.refusal_log import FewOfEach, RefusalLog

MOST, WITHIN_S = 3, 10.0
EVENTS = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 4.0)), max_size=60)


@given(EVENTS)
def test_no_kind_has_more_lines_in_a_time_and_all_others_are_counted(events: list[tuple[str, float]]) -> None:
    few = FewOfEach(MOST, WITHIN_S)
    now_s, told, left_out = 0.0, dict[str, list[float]](a=[], b=[]), Counter[str]()
    for kind, later_s in events:
        now_s += later_s
        said = few.admits(kind, now_s)
        if said is None:
            left_out[kind] += 1
            # A line is left out for those told before, not for another kind's.
            assert sum(now_s - when < WITHIN_S for when in told[kind]) == MOST
        else:
            assert said == left_out.pop(kind, 0)
            told[kind].append(now_s)
            assert sum(now_s - when < WITHIN_S for when in told[kind]) <= MOST


def test_a_flood_is_told_in_ten_lines_and_the_next_one_says_how_many_there_were() -> None:
    clock = SetClock()
    log = RefusalLog(clock)
    with capture_logs() as lines:
        for number in range(1000):
            log.tell("call refused", "request", number=number)
        log.tell("call refused", "role", number=-1)
        clock.now_s = 60.0
        log.tell("call refused", "request", number=1000)
    assert [line["number"] for line in lines] == [*range(10), -1, 1000]
    assert [line.get("left_out") for line in lines] == [None] * 11 + [990]
