"""The choice of a run's compression: the least time to a loss, by the costs that were measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster import make_job

from taihu.core.coordination.plans.choosing import LEARNS, Choosing, ways
from taihu.core.coordination.plans.planning import frame_elements_of, planned_compression
from taihu.core.job import Job
from taihu.core.job.chosen import table_of, with_compression
from taihu.core.planner.decide import decide
from taihu.core.planner.profile import LayerCost, LinearCost, LinkCost, Profile

PROFILE = Profile(
    layers=tuple(LayerCost(f"l{i}", n, 0.005) for i, n in enumerate((400_000, 100, 900_000, 50_000, 10, 80_000))),
    forward_seconds=0.03,
    scan=LinearCost(1e-5, 1e-9),
    top_k=LinearCost(3e-5, 5e-9),
    link=LinkCost(1e-3, 2e-8, 2e-8),
    workers=3,
    servers=1,
)


def job_of(servers: int = 1, **compression: Any) -> Job:
    kind = "server" if servers else "ring"
    return make_job(max(servers, 1), 3, compression={"method": "auto", **compression}, exchange={"kind": kind})


def profile_by(megabits: float, servers: int = 1) -> Profile:
    per_byte = 3 * 8e-6 / megabits
    return replace(PROFILE, link=LinkCost(2e-4, per_byte, per_byte), servers=servers)


def chosen_by(job: Job, profile: Profile, seconds: Callable[[str], float]) -> tuple[Choosing, list[str]]:
    """A choice where steps take so long, and the ways that were tried for it."""
    choosing, tried = Choosing(job), []
    choosing.look(1_000_000_000, one_host=False)
    while choosing.choice is None:
        assert choosing.tried is not None
        tried.append(choosing.tried.label)
        begun = choosing.begin()
        assert not choosing.is_over
        if choosing.costs is None:
            choosing.measured(profile_by(1e-3), 1e9)  # by a message for each layer: it does not count
            assert not choosing.is_over
        assert begun.train.steps == 1 + 2 * begun.exchange.calibration_steps
        choosing.measured(profile, seconds(tried[-1]))
        assert choosing.is_over
    return choosing, tried


def predicted_by(job: Job, profile: Profile) -> dict[str, float]:
    """Seconds of a step by its best plan, by the labels of ways."""
    compressions = {way.label: planned_compression(way.job, frame_elements_of(way.job)) for way in ways(job)}
    return {label: decide(profile, each, job.exchange.plan).seconds for label, each in compressions.items()}


@pytest.mark.parametrize(("megabits", "label"), [(1, "dlgs 0.01 int4"), (1_000_000, "none")])
def test_slow_links_carry_little_and_fast_ones_everything(megabits: float, label: str) -> None:
    profile = profile_by(megabits)
    choosing, _ = chosen_by(job_of(), profile, predicted_by(job_of(), profile).__getitem__)
    assert choosing.choice is not None
    assert choosing.choice.way.label == label


@settings(deadline=None, max_examples=40)
@given(st.floats(0.5, 1e5), st.floats(0, 0.01), st.sampled_from([0, 1]), st.lists(st.floats(0.5, 4.0), min_size=5))
def test_nothing_else_would_be_there_sooner(
    megabits: float, alpha: float, servers: int, mistakes: list[float]
) -> None:
    """Steps take another time than is predicted: trials decide, and all that may be better is tried."""
    profile = profile_by(megabits, servers)
    profile = replace(profile, link=replace(profile.link, alpha_seconds=alpha))
    job = job_of(servers)
    predicted = predicted_by(job, profile)
    real = {label: each * mistake for (label, each), mistake in zip(predicted.items(), mistakes, strict=False)}
    steps = {
        way.label: LEARNS[way.job.compression.share] if way.job.compression.method.selects else 1.0
        for way in ways(job)
    }
    choosing, tried = chosen_by(job, profile, real.__getitem__)
    assert choosing.choice is not None
    best = choosing.choice.way.label
    assert len(set(tried)) == len(tried)
    prices = {label: steps[label] * real[label] for label in tried}
    assert prices[best] <= min(prices.values()) / 0.97
    assert all(prices[label] >= prices[best] for label in tried if list(steps).index(label) < list(steps).index(best))
    assert all(steps[label] * predicted[label] > 1.6 * min(prices.values()) for label in steps.keys() - set(tried))
    assert dict(choosing.choice.measured) == {label: real[label] for label in tried}
    assert dict(choosing.choice.predicted) == {label: predicted[label] for label in steps.keys() - set(tried)}


@pytest.mark.parametrize("density", [0.2, 0.05, 0.001])
def test_no_less_is_sent_than_the_job_says(density: float) -> None:
    assert {way.job.compression.share for way in ways(job_of(density=density))} == {1.0, density}


@pytest.mark.parametrize(("value_type", "types"), [("fp32", {"fp32"}), ("int8", {"fp32", "int8"}), ("int2", None)])
def test_no_value_has_fewer_bits_than_the_job_says(value_type: str, types: set[str] | None) -> None:
    found = {way.job.compression.value_type for way in ways(job_of(value_type=value_type))}
    assert found == (types or {"fp32", "int8", "int4", "int2"})


def test_few_bits_go_around_a_ring_and_sums_are_whole() -> None:
    few = {"quantized int8", "quantized int4", "dlgs 0.01 int4"}
    assert {way.label for way in ways(job_of(0))} == {"none", "dlgs 0.01 fp32", *few}
    assert all(way.job.compression.downlink_value_type == "fp32" for way in ways(job_of(0)))


def test_where_sums_cannot_come_back_few_bits_go_up_alone() -> None:
    job = make_job(1, 3, compression={"method": "auto"}, optimizer={"name": "adam"})
    few = [way.job.compression for way in ways(job) if way.job.compression.value_type == "int4"]
    assert few
    assert {each.downlink_value_type for each in few} == {"fp32"}


@pytest.mark.parametrize(
    "given_too", [{}, {"density": 0.001}, {"density": 0.3, "threshold": "group", "clip_norm": 2.0}]
)
@pytest.mark.parametrize("servers", [0, 2])
def test_all_members_make_the_same_job_of_what_they_are_told(servers: int, given_too: dict[str, Any]) -> None:
    job = job_of(servers, **given_too)
    for way in ways(job):
        told = with_compression(job, table_of(way.job.compression))
        assert told.digest == way.job.digest
        assert told.compression == way.job.compression


def test_a_trial_sends_as_much_as_it_may() -> None:
    """Little tells latency from rate on fast links, and much takes too long on slow ones."""
    for elements, label in ((50_000, "none"), (270_000, "quantized int4"), (15_000_000, "dlgs 0.01 int4")):
        choosing = Choosing(job_of())
        choosing.look(elements, one_host=False)
        assert choosing.is_over is (label != "dlgs 0.01 int4")
        assert choosing.tried is not None
        assert choosing.tried.label == label
        assert choosing.choice is None
        trial = choosing.begin()
        choosing.look(elements, one_host=False)
        assert not choosing.is_over
        assert (trial.train.steps, trial.compression) == (
            2 * job_of().exchange.calibration_steps + 1,
            choosing.tried.job.compression,
        )


def test_members_that_share_memory_have_nothing_to_choose() -> None:
    shared = make_job(1, 3, compression={"method": "auto"}, exchange={"transport": "auto"})
    choosing = Choosing(shared)
    choosing.look(10_000_000, one_host=True)
    assert choosing.is_over
    assert choosing.choice is not None
    assert choosing.choice.way.label == "none"
    assert "share this machine's memory" in choosing.words
    over_tcp = Choosing(job_of())
    over_tcp.look(10_000_000, one_host=True)
    assert over_tcp.choice is None


def test_where_nothing_goes_with_the_job_it_sends_everything() -> None:
    job = make_job(1, 3, compression={"method": "auto"}, exchange={"zero": 3})
    choosing = Choosing(job)
    assert choosing.begin().compression == job.compression
    choosing.look(1_000, one_host=False)
    assert choosing.is_over
    assert choosing.choice is not None
    assert choosing.choice.way.label == "none"
    assert "goes with the other settings" in choosing.words


def test_a_choice_is_made_once_and_says_why() -> None:
    profile = profile_by(1)
    choosing, tried = chosen_by(job_of(), profile, lambda _: 0.1)
    first = choosing.choice
    assert first is not None
    choosing.measured(profile_by(1_000_000), 1e-9)
    choosing.measured(profile_by(1_000_000), 1e-9)
    assert choosing.choice is first
    assert tried[0] == "dlgs 0.01 int4"
    assert choosing.words.startswith(f"compression is chosen: {first.way.label}: a step took {tried[0]} 100.0 ms")
    assert "; predicted were none " in choosing.words


@pytest.mark.parametrize("method", ["none", "quantized int8", "dlgs 0.01 fp32"])
def test_steps_to_a_loss_are_a_price(method: str) -> None:
    way = next(way for way in ways(job_of()) if way.label == method)
    assert way.steps == pytest.approx(
        {"none": 1.0, "quantized int8": LEARNS[1.0], "dlgs 0.01 fp32": LEARNS[0.01]}[method]
    )


@pytest.mark.parametrize(("own", "steps"), [(6, 6), (16, 10), (100, 10)])
def test_a_trial_measures_few_steps(own: int, steps: int) -> None:
    job = make_job(1, 3, compression={"method": "auto"}, exchange={"calibration_steps": own})
    assert Choosing(job).begin().exchange.calibration_steps == steps


def test_the_first_trial_alone_needs_a_second_report() -> None:
    """Steps of the next one go by the plan that follows from its costs."""
    choosing = Choosing(job_of())
    choosing.look(1_000_000_000, one_host=False)
    choosing.begin()
    choosing.measured(PROFILE, 9.0)
    assert not choosing.is_over
    choosing.measured(PROFILE, 9.0)
    assert choosing.is_over
    assert choosing.choice is None
    choosing.begin()
    assert not choosing.is_over
    choosing.measured(PROFILE, 0.001)
    assert choosing.is_over
