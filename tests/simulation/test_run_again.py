"""Activations that are computed again, on the virtual clock: what that takes, and in which order parameters come."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster import layout_of
from support.exchanges import run_workers
from support.simulations import AT_ONCE, PLAIN, job_of, seconds_of
from support.told_events import Event, Told
from support.worker import train_slowly

import taihu.ps_server.server_shard
import taihu.simulation.servers
import taihu.simulation.worker
import taihu.worker.exchange.shell
from taihu.core.planner.profile import LayerCost, LinearCost, LinkCost, Profile
from taihu.simulation.compute import Segments, of_measured
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.placement import Placement

SIZES = (700, 40, 1200, 90, 300)
AGAIN: Segments = ((2, 3), (4, 4))
STEPS = 3
FREE = LinearCost(0.0, 0.0)


def simulated(servers: int, workers: int, zero: int, plan: str, each: float) -> Simulated:
    """The step of a job that runs `AGAIN` again, each worker for itself."""
    job = job_of(workers, servers, exchange={"zero": zero, "plan": plan}, train={"recompute": "memory"})
    layout = layout_of(*SIZES)
    compute = replace(seconds_of(layout, each), run_again=AGAIN)
    return simulate_job(job, layout, compute, Placement(PLAIN, AT_ONCE, distinct=True), steps=STEPS)


@pytest.mark.parametrize("plan", ["single", "per-layer"])
def test_a_step_takes_the_forward_of_what_is_run_again_more(plan: str) -> None:
    """A worker alone, whatever groups the segments cross: 5 layers forward and backward, 3 of them again."""
    assert simulated(0, 1, 0, plan, 1.0).seconds == pytest.approx(13.0)
    assert simulated(0, 1, 0, plan, 1.0).compute_seconds == pytest.approx(13.0)


@given(
    st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=8),
    st.floats(0.0, 3.0),
    st.lists(st.integers(1, 7), max_size=3, unique=True),
)
def test_what_a_run_measured_is_told_from_what_it_ran_again(
    backward: list[float], ratio: float, cuts: list[int]
) -> None:
    """Backward that was measured holds, in the first layer of each segment, the forward of all its layers."""
    bounds = [*(cut for cut in sorted(cuts) if cut < len(backward)), len(backward)]
    segments = tuple((first, beyond - 1) for first, beyond in pairwise(bounds))
    forward = [ratio * seconds for seconds in backward]
    measured = list(backward)
    for first, last in segments:
        measured[first] += sum(forward[first : last + 1])
    layers = tuple(LayerCost(f"l{i}", 1, seconds) for i, seconds in enumerate(measured))
    found = of_measured(Profile(layers, sum(forward), FREE, FREE, LinkCost(0.0, 0.0, 0.0), 1, 1), segments)
    assert found.backward == pytest.approx(backward, rel=1e-6, abs=1e-9)
    assert found.forward == pytest.approx(forward, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("servers", [1, 0])
def test_parameters_are_fetched_again_in_the_order_of_a_real_job(
    servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = {"plan": "per-layer", "transport": "tcp", "zero": 3}
    job = job_of(2, servers, exchange=exchange, train={"recompute": "memory"})
    with Told().listening(monkeypatch, taihu.worker.exchange.shell, taihu.ps_server.server_shard) as real:
        run_workers(job, layout_of(*SIZES), partial(train_slowly, steps=STEPS, run_again=AGAIN))
    with Told().listening(monkeypatch, taihu.simulation.worker, taihu.simulation.servers) as own:
        simulated(servers, 2, 3, "per-layer", 1.0)
    assert own.pushed == real.pushed
    asked = [[asked_of(events) for events in told.fetched] for told in (own, real)]
    if not servers:
        # Around a ring the last group is asked for when it has been updated, which the real job waits for first.
        asked = [[sorted(events) for events in of] for of in asked]
    assert asked[0] == asked[1]
    # In a step every layer is fetched to be read in forward, and those of a segment of several before both.
    assert len(asked[0][0]) == STEPS * (len(SIZES) + 5)


def asked_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event[0] == "ask"]
