"""The choice of a run's compression: the least time to a loss, by the costs that were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster import make_job

from taihu.core.coordination.choosing import LEARNS, Choosing, choose, ways
from taihu.core.coordination.planning import frame_elements_of, planned_compression
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


def test_slow_links_carry_little_and_fast_ones_everything() -> None:
    among = tuple(ways(job_of()))
    assert choose(among, profile_by(1)).way.label == "dlgs 0.01 int4"
    assert choose(among, profile_by(1_000_000)).way.label == "none"
    shares = [choose(among, profile_by(megabits)).way.job.compression for megabits in (1, 30, 3_000, 1_000_000)]
    assert [each.share for each in shares] == sorted(each.share for each in shares)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.5, 1e5), st.floats(0, 0.01), st.sampled_from([0, 1]), st.floats(1e-4, 0.1))
def test_nothing_else_would_be_there_sooner(megabits: float, alpha: float, servers: int, compute: float) -> None:
    profile = profile_by(megabits, servers)
    link = replace(profile.link, alpha_seconds=alpha)
    profile = replace(profile, link=link, forward_seconds=compute)
    among = tuple(ways(job_of(servers)))
    times = {}
    for way in among:
        compression = planned_compression(way.job, frame_elements_of(way.job))
        share = way.job.compression.share
        steps = LEARNS[share] if way.job.compression.method.selects else 1.0
        times[way.label] = steps * decide(profile, compression, way.job.exchange.plan).seconds
    chosen = choose(among, profile)
    assert times[chosen.way.label] <= min(times.values()) / 0.97
    # It comes first among those that are as good.
    before = [way.label for way in among][: [way.label for way in among].index(chosen.way.label)]
    assert all(times[label] > times[chosen.way.label] for label in before)


@pytest.mark.parametrize("density", [0.2, 0.05, 0.001])
def test_no_less_is_sent_than_the_job_says(density: float) -> None:
    assert {way.job.compression.share for way in ways(job_of(density=density))} == {1.0, density}


@pytest.mark.parametrize(("value_type", "types"), [("fp32", {"fp32"}), ("int8", {"fp32", "int8"}), ("int2", None)])
def test_no_value_has_fewer_bits_than_the_job_says(value_type: str, types: set[str] | None) -> None:
    found = {way.job.compression.value_type for way in ways(job_of(value_type=value_type))}
    assert found == (types or {"fp32", "int8", "int4", "int2"})


def test_a_ring_sums_whole_values() -> None:
    assert {way.label for way in ways(job_of(0))} == {"none", "dlgs 0.01 fp32"}


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
        assert choosing.look(elements, one_host=False) is (label != "dlgs 0.01 int4")
        assert choosing.tried is not None
        assert choosing.tried.label == label
        assert choosing.choice is None
        assert not choosing.look(elements, one_host=False)
        trial = choosing.trial
        assert (trial.train.steps, trial.compression) == (
            2 * job_of().exchange.calibration_steps + 1,
            choosing.tried.job.compression,
        )


def test_members_that_share_memory_have_nothing_to_choose() -> None:
    shared = make_job(1, 3, compression={"method": "auto"}, exchange={"transport": "auto"})
    choosing = Choosing(shared)
    assert choosing.look(10_000_000, one_host=True)
    assert choosing.choice is not None
    assert choosing.choice.way.label == "none"
    assert "share this machine's memory" in choosing.words
    over_tcp = Choosing(job_of())
    over_tcp.look(10_000_000, one_host=True)
    assert over_tcp.choice is None


def test_where_nothing_goes_with_the_job_it_sends_everything() -> None:
    job = make_job(1, 3, compression={"method": "auto"}, exchange={"zero": 3})
    choosing = Choosing(job)
    assert choosing.trial == job
    assert choosing.look(1_000, one_host=False)
    assert choosing.choice is not None
    assert choosing.choice.way.label == "none"
    assert "goes with the other settings" in choosing.words


def test_a_choice_is_made_once() -> None:
    choosing = Choosing(job_of())
    choosing.measured(profile_by(1_000_000))
    assert choosing.choice is None
    choosing.measured(profile_by(1))
    first = choosing.choice
    choosing.measured(profile_by(1_000_000))
    assert choosing.choice is first
    assert first is not None
    assert choosing.words.startswith("compression is chosen: dlgs 0.01 int4: a step takes none ")


@pytest.mark.parametrize("method", ["none", "quantized int8", "dlgs 0.01 fp32"])
def test_steps_to_a_loss_are_a_price(method: str) -> None:
    way = next(way for way in ways(job_of()) if way.label == method)
    assert way.steps == pytest.approx(
        {"none": 1.0, "quantized int8": LEARNS[1.0], "dlgs 0.01 fp32": LEARNS[0.01]}[method]
    )
