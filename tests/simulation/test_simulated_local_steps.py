"""Local steps on the virtual clock: so many batches and one exchange, and what is measured of them."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

import pytest
from support.simulations import AT_ONCE, PLAIN, job_of, layout_of, seconds_of

from taihu.simulation.compute import of_measured
from taihu.simulation.from_start import simulate_first_steps
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.placement import Placement

COUNT, EACH_S = 4, 0.25
LAYOUT = layout_of(1_000_000, 2_000_000)
PLACEMENT = Placement(PLAIN, AT_ONCE)


def step_of(workers: int, servers: int, local_steps: int) -> Simulated:
    job = job_of(workers, servers, exchange={"local_steps": local_steps})
    compute = replace(seconds_of(LAYOUT, EACH_S), local_steps=local_steps)
    return simulate_job(job, LAYOUT, compute, PLACEMENT)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_step_has_so_many_batches_and_one_exchange(servers: int) -> None:
    one, four = step_of(3, servers, 1), step_of(3, servers, COUNT)
    assert four.seconds - one.seconds == pytest.approx((COUNT - 1) * 4 * EACH_S)
    assert four.compute_seconds == pytest.approx(COUNT * one.compute_seconds)
    assert four.worker_bytes == one.worker_bytes


def test_a_batch_is_found_again_in_what_a_run_of_many_measures() -> None:
    job = job_of(2, 1, exchange={"local_steps": COUNT, "plan": "greedy"})
    compute = replace(seconds_of(LAYOUT, EACH_S), local_steps=COUNT)
    profile = simulate_first_steps(job, LAYOUT, compute, PLACEMENT, None, 30).profile
    assert profile is not None
    assert profile.forward_seconds == pytest.approx(compute.before_last_seconds + 2 * EACH_S)
    found = replace(of_measured(profile), local_steps=profile.local_steps)
    assert found.seconds == pytest.approx(compute.seconds)
    assert fsum(found.forward) == pytest.approx(2 * EACH_S)
