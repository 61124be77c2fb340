"""Many ranks hop by hop, beside the same ranks message by message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulations import PLAIN, job_of, simulated

import taihu.simulation.ring
from taihu.core.job import Job
from taihu.simulation.job import Simulated
from taihu.simulation.machines import Machines, Network

UNEVEN = Machines(add_bytes_per_second=1e9, jitter=0.3)
FAR = replace(PLAIN, supernode=3, oversubscription=4.0, supernode_alpha_seconds=2e-3, message_seconds=1e-4)


def both_ways(job: Job, sizes: list[int], network: Network, monkeypatch: pytest.MonkeyPatch) -> list[Simulated]:
    """The steps hop by hop, and message by message."""
    found = []
    for many in (1, 1000):
        monkeypatch.setattr(taihu.simulation.ring, "MANY_RANKS", many)
        found.append(simulated(job, sizes, network, UNEVEN, each=0.01, steps=4))
    return found


@pytest.mark.parametrize("network", [PLAIN, FAR])
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"exchange": {"zero": 1}},
        {"exchange": {"zero": 3}},
        {"exchange": {"zero": 2}, "train": {"precision": "bf16"}},
        {"exchange": {"zero": 2}, "train": {"precision": "fp16"}},
        {"exchange": {"zero": 2}, "optimizer": {"clip": "whole", "clip_norm": 1.0}},
    ],
)
def test_one_operation_at_a_time_is_what_its_messages_are(
    sections: Mapping[str, Mapping[str, object]], network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(5, 0, **sections)
    whole, each = both_ways(job, [3, 700_000, 90_000], network, monkeypatch)
    assert whole.events < each.events
    assert whole.seconds == pytest.approx(each.seconds, rel=1e-9)
    assert (whole.wait_seconds, whole.exchange_seconds) == pytest.approx((each.wait_seconds, each.exchange_seconds))
    if not sections.get("train") and job.stage.key < 3:
        # Elsewhere bytes are counted from a step's end to another one's, in which some of them are under way.
        assert whole.worker_bytes == each.worker_bytes


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 400_000), min_size=1, max_size=3), st.integers(2, 7))
def test_chunks_of_any_size_and_segments(sizes: list[int], ranks: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        whole, each = both_ways(job_of(ranks, 0), sizes, FAR, monkeypatch)
    assert whole.seconds == pytest.approx(each.seconds, rel=1e-9)
    assert whole.worker_bytes == each.worker_bytes


def test_operations_that_overlap_take_about_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(12, 0, exchange={"plan": "per-layer"})
    whole, each = both_ways(job, [300_000, 200_000, 400_000, 100_000], PLAIN, monkeypatch)
    assert whole.seconds == pytest.approx(each.seconds, rel=0.1)
    assert whole.worker_bytes == each.worker_bytes


def test_the_same_seed_gives_the_same_steps_where_links_jitter() -> None:
    network = replace(PLAIN, jitter=0.5, loss_ratio=0.01)
    first, again, other = (
        simulated(job_of(40, 0), [100_000], network, UNEVEN, each=0.01, steps=3, seed=seed) for seed in (1, 1, 2)
    )
    assert first.to_json() == again.to_json()
    assert first.seconds != other.seconds
