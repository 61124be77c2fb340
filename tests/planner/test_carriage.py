"""The carrier of values: gRPC, unless the steps of a trial were faster by connections of their own."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.planner.carriage import Carriage, carrier_in, faster_carrier, first_carriage, steps_by
from taihu.core.planner.measurement import StepMeasurement


def step(number: int, seconds: float, *, serial: bool = False, path: str = "") -> StepMeasurement:
    return StepMeasurement(number, serial, 0.0, (), (), seconds, path)


@pytest.mark.parametrize(
    ("transport", "one_host", "waits", "expected"),
    [
        ("auto", True, False, "tcp"),
        ("auto", True, True, "tcp"),
        ("auto", False, True, "grpc"),
        ("auto", False, False, "trial"),
        ("grpc", True, True, "grpc"),
        ("grpc", False, False, "grpc"),
        ("tcp", False, True, "tcp"),
        ("tcp", True, False, "tcp"),
        ("same-host", False, False, "tcp"),
    ],
)
def test_the_first_plan(transport: str, *, one_host: bool, waits: bool, expected: Carriage) -> None:
    assert first_carriage(transport, one_host=one_host, waits_for_groups=waits) == expected


def test_a_trial_takes_both_in_turns_and_nothing_else_does() -> None:
    assert [carrier_in("trial", number) for number in (1, 2, 3, 4)] == ["grpc", "tcp", "grpc", "tcp"]
    assert {carrier_in("grpc", number) for number in range(9)} == {"grpc"}
    assert {carrier_in("tcp", number) for number in range(9)} == {"tcp"}


@pytest.mark.parametrize(("by_tcp", "expected"), [(1.0, "grpc"), (0.98, "grpc"), (0.96, "tcp"), (1.1, "grpc")])
def test_connections_must_be_faster_by_more_than_3_percent(by_tcp: float, expected: str) -> None:
    report = [step(number, 1.0 if number % 2 else by_tcp) for number in range(3, 9)]
    assert faster_carrier([report, report]) == expected


def test_all_workers_together_are_what_a_step_took() -> None:
    fast = [step(3, 1.0), step(4, 0.5)]
    assert faster_carrier([fast, [step(3, 1.0), step(4, 1.43)]]) == "tcp"
    assert faster_carrier([fast, [step(3, 1.0), step(4, 1.45)]]) == "grpc"
    # One worker's exchange took longer because another one's began early.
    uneven = [[step(3, 0.8), step(4, 1.0), step(5, 0.8)], [step(3, 1.2), step(4, 1.0), step(5, 1.2)]]
    assert faster_carrier(uneven) == "grpc"


def test_steps_that_fell_back_to_grpc_say_nothing_of_connections() -> None:
    by_grpc = [step(3, 1.0, path="grpc"), step(5, 1.0, path="grpc")]
    late = step(4, 0.5, path="grpc")
    assert faster_carrier([[*by_grpc, late]]) == "grpc"
    assert faster_carrier([[*by_grpc, late, step(6, 0.9, path="tcp")]]) == "tcp"
    # One link of one worker is enough.
    half = replace(late, path="grpc and tcp")
    assert faster_carrier([[*by_grpc, replace(late, path="tcp")], [*by_grpc, half]]) == "grpc"
    assert faster_carrier([[*by_grpc, replace(late, path="same-host and tcp")]]) == "tcp"


@pytest.mark.parametrize(("gain", "noise", "most"), [(1.6, 0.1, 0.0), (1.6, 0.2, 0.01), (1.3, 0.1, 0.01)])
def test_a_trial_of_the_usual_length_is_seldom_wrong(gain: float, noise: float, most: float) -> None:
    rng, trials, wrong = np.random.default_rng(1), 2000, 0
    for _ in range(trials):
        noises = np.exp(noise * rng.standard_normal(6))
        report = [
            step(number, (gain if number % 2 else 1.0) * factor, serial=number > 12)
            for number, factor in zip(range(9, 15), noises, strict=True)
        ]
        wrong += faster_carrier([report]) == "grpc"
    assert wrong <= most * trials


def test_steps_are_compared_with_their_like() -> None:
    # Serial steps are slow; that only one carrier has one says nothing.
    assert faster_carrier([[step(3, 1.0), step(4, 0.9), step(6, 9.0, serial=True)]]) == "tcp"
    assert faster_carrier([[step(3, 1.0), step(6, 0.1, serial=True)]]) == "grpc"
    assert faster_carrier([[]]) == "grpc"


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.booleans(), st.floats(0.001, 10.0)),
        unique_by=lambda item: item[0],
        max_size=20,
    )
)
def test_the_choice_against_its_definition(items: list[tuple[int, bool, float]]) -> None:
    totals = {0: 0.0, 1: 0.0}
    for kind in (False, True):
        odd, even = ([s for n, serial, s in items if serial == kind and n % 2 == rest] for rest in (1, 0))
        if odd and even:
            totals[1] += statistics.median(odd)
            totals[0] += statistics.median(even)
    expected = "tcp" if totals[0] < 0.97 * totals[1] else "grpc"
    assert faster_carrier([[step(n, seconds, serial=serial) for n, serial, seconds in items]]) == expected


def test_links_are_calibrated_by_the_steps_of_what_was_chosen() -> None:
    report = [step(number, 1.0, serial=number > 6) for number in range(3, 9)]
    assert [each.step for each in steps_by("tcp", [report])[0]] == [4, 6, 8]
    assert [each.step for each in steps_by("grpc", [report])[0]] == [3, 5, 7]
    assert steps_by("tcp", [report[:5]]) == [report[:5]]


def test_where_a_worker_has_no_serial_step_of_what_was_chosen_all_steps_tell() -> None:
    reports = [[step(3, 1.0, serial=True), step(4, 1.0)], [step(3, 1.0), step(4, 1.0, serial=True)]]
    assert steps_by("grpc", reports) == reports
    assert steps_by("tcp", reports) == reports
