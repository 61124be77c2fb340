"""Clock offsets against simulated clocks, and against a search through all samples.

Times are whole multiples of 1/1024 s: sums and midpoints are exact, so bounds are tested without slack.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.trace.clock_offset import ClockOffset

quick = settings(deadline=None)

TICK = 1 / 1024
TIMES = st.integers(-(2**20), 2**20).map(lambda ticks: ticks * TICK)
DELAYS = st.integers(0, 2**14).map(lambda ticks: ticks * TICK)


class Request(NamedTuple):
    """The local instants of a request; the delays of its two ways have nothing to do with each other."""

    sent_s: float
    answered_s: float
    received_s: float

    @property
    def round_trip_s(self) -> float:
        return self.received_s - self.sent_s


REQUESTS = st.builds(lambda sent, out, back: Request(sent, sent + out, sent + out + back), TIMES, DELAYS, DELAYS)


def in_turn(gaps: list[tuple[float, float, float]]) -> list[Request]:
    """Requests one after another, from (pause, way out, way back)."""
    starts = accumulate((sum(gap) for gap in gaps), initial=0.0)
    return [
        Request(start + pause, start + pause + out, start + pause + out + back)
        for start, (pause, out, back) in zip(starts, gaps, strict=False)
    ]


@quick
@given(st.lists(REQUESTS, min_size=1, max_size=20), TIMES, DELAYS)
def test_the_true_offset_lies_within_the_error_however_unequal_the_ways(
    requests: list[Request], ahead_s: float, window_s: float
) -> None:
    estimate = ClockOffset(window_s)
    for request in requests:
        estimate.add(request.sent_s, request.answered_s + ahead_s, request.received_s)
        assert abs(estimate.offset_s - ahead_s) <= estimate.error_s


@quick
@given(st.lists(st.tuples(DELAYS, DELAYS, DELAYS), min_size=1, max_size=20), TIMES, st.integers(-3, 3), DELAYS)
def test_drift_adds_at_most_its_rate_times_the_window(
    gaps: list[tuple[float, float, float]], ahead_s: float, rate_ticks: int, window_s: float
) -> None:
    rate = rate_ticks / 1024
    estimate = ClockOffset(window_s)
    for request in in_turn(gaps):
        remote_s = request.answered_s * (1 + rate) + ahead_s
        estimate.add(request.sent_s, remote_s, request.received_s)
        true_s = request.received_s * rate + ahead_s
        # The sample was taken somewhere in its round trip, which ended within the window.
        drift_s = abs(rate) * (window_s + 2 * estimate.error_s)
        assert abs(estimate.offset_s - true_s) <= estimate.error_s + drift_s


@quick
@given(st.lists(REQUESTS, min_size=1, max_size=20), st.lists(TIMES, min_size=20, max_size=20), DELAYS)
def test_the_estimate_is_the_quickest_sample_of_the_window_in_any_order_of_samples(
    requests: list[Request], readings: list[float], window_s: float
) -> None:
    samples = list(zip(requests, readings, strict=False))
    estimate = ClockOffset(window_s)
    for request, server_s in samples:
        estimate.add(request.sent_s, server_s, request.received_s)
    newest_s = max(request.received_s for request in requests)
    recent = [sample for sample in samples if newest_s - sample[0].received_s <= window_s]
    least_s = min(request.round_trip_s for request, _ in recent)
    quickest = [sample for sample in recent if sample[0].round_trip_s == least_s]
    latest_s = max(request.received_s for request, _ in quickest)
    assert estimate.error_s == least_s / 2
    # Of samples that are alike in both, any will do.
    assert estimate.offset_s in {
        server_s - (request.sent_s + request.received_s) / 2
        for request, server_s in quickest
        if request.received_s == latest_s
    }


@quick
@given(REQUESTS, TIMES, TIMES)
def test_conversions_undo_each_other(request: Request, server_s: float, local_s: float) -> None:
    estimate = ClockOffset()
    assert estimate.to_remote(local_s) == estimate.to_local(local_s) == local_s
    estimate.add(request.sent_s, server_s, request.received_s)
    assert estimate.to_remote(local_s) - local_s == estimate.offset_s
    assert estimate.to_local(estimate.to_remote(local_s)) == local_s
    assert estimate.to_remote((request.sent_s + request.received_s) / 2) == server_s


def test_a_queued_answer_changes_nothing_until_the_window_has_passed() -> None:
    estimate = ClockOffset()
    estimate.add(0.0, 10.5, 1.0)
    assert (estimate.offset_s, estimate.error_s) == (10.0, 0.5)
    estimate.add(297.0, 315.0, 301.0)
    assert (estimate.offset_s, estimate.error_s) == (10.0, 0.5)
    estimate.add(298.0, 316.0, 302.0)
    assert (estimate.offset_s, estimate.error_s) == (16.0, 2.0)


def test_of_equally_quick_answers_the_latest_counts_because_clocks_drift() -> None:
    estimate = ClockOffset()
    estimate.add(0.0, 10.5, 1.0)
    estimate.add(10.0, 20.625, 11.0)
    assert estimate.offset_s == 10.125


def test_nothing_is_known_before_the_first_answer() -> None:
    assert (ClockOffset().offset_s, ClockOffset().error_s) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("sent_s", "server_s", "received_s"),
    [(2.0, 0.0, 1.0), (math.nan, 0.0, 1.0), (0.0, math.inf, 1.0), (0.0, math.nan, 1.0), (-math.inf, 0.0, 1.0)],
)
def test_impossible_samples_are_refused(sent_s: float, server_s: float, received_s: float) -> None:
    estimate = ClockOffset()
    estimate.add(0.0, 10.5, 1.0)
    with pytest.raises(ValueError, match="expected finite seconds with sent <= received"):
        estimate.add(sent_s, server_s, received_s)
    assert (estimate.offset_s, estimate.error_s) == (10.0, 0.5)
