"""The rules of an exchange, whatever way it goes: every test here holds for every way that has what it is about."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster import layout_of
from support.exchanges import exchange_steps, run_workers
from support.oracle import expected_parameters
from support.undisturbed import (
    LAYOUT,
    family_of,
    gradients,
    job_of,
    looked_at,
    parametrized,
    plan_of,
    run_of,
    strategies_of,
)
from support.ways import DENSE, WAYS, Way
from support.worker import Values, Worker

from taihu.core.job import Job
from taihu.core.model.layout import Layout

IN_MEMORY = Way("ring", 0, transport="same-host")
"""Sums of a ring in shared memory do not count as sent or received."""

ways = parametrized(WAYS)


@ways
def test_all_workers_read_the_parameters_of_the_oracle_after_every_step(way: Way) -> None:
    run = run_of(way)
    expected = expected_parameters(job_of(way), LAYOUT, gradients, strategies_of(way))
    sums_in_16_bits = way.kind == "ring" and way.precision != "fp32"
    rtol = {"fp32": 1e-4, "fp16": 2**-10, "bf16": 2**-7}[way.precision]
    for step, (seen, exact) in enumerate(zip(run.parameters, expected, strict=True), 1):
        assert len({values.tobytes() for values in seen}) == 1, f"workers differ after step {step}"
        np.testing.assert_allclose(
            seen[0], exact, rtol=rtol, atol=0.01 if sums_in_16_bits else 1e-5, err_msg=f"step {step}"
        )


@ways
def test_values_travel_as_the_job_says(way: Way) -> None:
    assert set(run_of(way).path) == {way.transport}


@ways
def test_every_group_is_accounted_for(way: Way) -> None:
    run = run_of(way)
    for step, (times, totals) in enumerate(zip(run.times, run.totals, strict=True)):
        for rank, (groups, total) in enumerate(zip(times, totals, strict=True)):
            # What was sent in the step before has left by now.
            assert (
                not step
                or way == IN_MEMORY
                or sum(each.bytes_up for each in run.times[step - 1][rank]) <= total.sent_bytes
            )
            assert len(groups) == run.groups[step]
            assert sum(each.elements for each in groups) == LAYOUT.elements
            assert all(0 < each.selected <= each.elements for each in groups)
            assert all(0 < each.ready_s <= each.submitted_s for each in groups)
            assert all(each.first_completed_s <= each.completed_s <= each.answered_s for each in groups)
            # What is selected may be all there is to wait for.
            assert all((each.submitted_s if way.is_dense else each.ready_s) <= each.answered_s for each in groups)
            if way.is_dense:
                assert all(each.selected == each.elements for each in groups)
            assert sum(each.bytes_up + each.fetch_bytes_up for each in groups) > 0
            if way != IN_MEMORY:
                assert 0 < sum(each.bytes_down + each.fetch_bytes_down for each in groups) <= total.received_bytes
    assert (run.groups[-1] < run.groups[0]) == way.is_planned


FAMILIES = {family_of(way) for way in WAYS}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in sorted(FAMILIES)]
)
def test_neither_transport_nor_stage_nor_route_changes_a_bit(family: str) -> None:
    ends = {end: way for way in WAYS if family_of(way) == family for end in run_of(way).ends}
    assert len(ends) == 1, f"different ends: {', '.join(map(str, ends.values()))}"


@parametrized([way for way in DENSE if way.kind == "server" and way.precision != "fp32"])
def test_servers_keep_a_master_of_16_bit_parameters(way: Way) -> None:
    """Sums of servers are exact, so what workers see is the oracle's to the last bit, but where that is a tie."""
    exact = expected_parameters(job_of(way), LAYOUT, gradients, strategies_of(way))[-1]
    assert np.mean(run_of(way).parameters[-1][0] == exact) > 0.98


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, Layout, Way]:
    """Any shape of a dense exchange."""
    way = draw(st.sampled_from(DENSE))
    sizes = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=6))
    strategy = draw(st.sampled_from(["single", "per-layer", "bucket:5kB"]))
    exchange = {
        "plan": strategy,
        "frame_bytes": draw(st.sampled_from([4096, 8192, 65536])),
        "window_frames": draw(st.integers(1, 6)),
        "live_bytes": draw(st.sampled_from([0, 4096, 20000])),
    }
    return way.job(draw(st.integers(1, 4)), draw(st.integers(1, 4)), exchange=exchange), layout_of(*sizes), way


@given(jobs(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=25)
def test_any_shape_pushed_in_any_order_follows_the_oracle(drawn: tuple[Job, Layout, Way], random: Random) -> None:
    job, layout, way = drawn
    orders = {n: random.sample(range(n), n) for n in range(1, len(layout.layers) + 3 * layout.elements // 5000 + 2)}

    def given_by(rank: int, step: int) -> Values:
        return np.random.default_rng([rank, step]).standard_normal(layout.elements, dtype=np.float32)

    run = exchange_steps(job, layout, given_by, steps=2, order=orders.__getitem__)
    assert len(run.ends) == 1
    exact = expected_parameters(job, layout, given_by, [job.exchange.plan] * 2)[-1]
    loose = 0.05 if way.kind == "ring" and way.precision != "fp32" else 1e-5
    np.testing.assert_allclose(run.parameters[-1][0], exact, rtol=2**-7, atol=loose)


@parametrized([way for way in WAYS if way.precision != "fp16"])
def test_groups_come_back_while_others_have_not_been_pushed(way: Way) -> None:
    """With fp16 nothing is sent before it is known whether all of a step fits."""

    def work(worker: Worker) -> None:
        before = worker.read()
        early = np.empty_like(before)
        worker.exchange.begin(1)
        for group, (start, stop) in enumerate(worker.bounds):
            worker.push(group, gradients(worker.rank, 1))
            worker.exchange.wait(group)
            early[start:stop] = worker.arenas.parameters[start:stop]
            assert (early[start:stop] != before[start:stop]).any()
            if way.zero < 2:
                assert worker.arenas.parameters[stop:].tobytes() == before[stop:].tobytes()
        assert early.tobytes() == worker.read().tobytes()

    run_workers(job_of(way), LAYOUT, work, plan=plan_of(way))


@parametrized(DENSE)
def test_groups_are_recalled_in_any_order_between_steps(way: Way) -> None:
    """A test between steps reads forward several times; who asks for what must not depend on when it comes."""
    recalled = looked_at(way)[1].recalled
    assert sorted(recalled) == [0, 1, 2]
    assert all(same and all(same) for same in recalled.values())


@parametrized(DENSE)
def test_flags_are_those_of_worker_0_where_workers_gather_parameters_together(way: Way) -> None:
    together = way.kind == "ring" and (way.zero == 3 or way.precision != "fp32")
    others = [1.0, 0.0] if together else [0.0, 1.0]
    assert looked_at(way)[1].flags == {0: [1.0, 0.0], 1: others, 2: others}
