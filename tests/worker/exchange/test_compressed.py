"""Promises of compression alone: nothing is lost, little is sent, and everything kept is the dense exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.cluster import layout_of, make_job
from support.exchanges import Run, exchange_steps
from support.oracle import expected_parameters
from support.worker import Values, initial_parameters

from taihu.core.coordination.plans.planning import first_plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.sparse_route import SPARSE_ROUTES, SparseAlgorithm

LAYOUT = layout_of(300, 7, 1, 1200, 64)
STEPS = 7


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def whole_gradients(rank: int, step: int) -> Values:
    """Gradients of few bits: sums and rests are exact in fp32, so that halves are rounded as in fp64."""
    whole: Values = np.rint(gradients(rank, step) * np.float32(64)) / np.float32(64)
    return whole


def job_of(servers: int, workers: int, optimizer: dict[str, object], **compression: object) -> Job:
    return make_job(
        max(1, servers),
        workers,
        exchange={"kind": "server" if servers else "ring", "plan": "bucket:1kB"},
        compression={"method": "dlgs", "density": 0.1, "refresh_every": 3, **compression},
        optimizer={"learning_rate": 0.1, **optimizer},
    )


@pytest.mark.parametrize("servers", [0, 2])
def test_factor_masking_stops_the_momentum_of_what_was_sent(servers: int) -> None:
    job = job_of(servers, 2, {"momentum": 0.9}, factor_masking=True)
    run = exchange_steps(job, LAYOUT, gradients, steps=STEPS)
    expected = expected_parameters(job, LAYOUT, gradients, ["bucket:1kB"] * STEPS)
    for seen, exact in zip(run.parameters, expected, strict=True):
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"momentum": 0.3, "weight_decay": 0.01}, {"name": "adam"}])
def test_by_default_nobody_applies_momentum_behind_a_selection(servers: int, optimizer: dict[str, object]) -> None:
    job = job_of(servers, 2, optimizer, density=0.05)
    run = exchange_steps(job, LAYOUT, gradients, steps=STEPS)
    expected = expected_parameters(job, LAYOUT, gradients, ["bucket:1kB"] * STEPS)
    for seen, exact in zip(run.parameters, expected, strict=True):
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-5)


# Here and below rows hold every pair of two parameters' values, where not every row of all parameters' values.
@pytest.mark.parametrize(
    ("servers", "rises", "momentum_at"),
    [
        *((0, "auto", "none"), (2, "no", "none"), (0, "yes", "none")),
        *((2, "auto", "workers"), (0, "no", "workers"), (2, "yes", "workers")),
    ],
)
def test_a_warm_up_holds_for_what_is_held_back(servers: int, rises: str, momentum_at: str) -> None:
    settings = {"momentum_at": momentum_at, "held_back_rises": rises}
    job = job_of(servers, 2, {"momentum": 0.5, "warmup_steps": 4}, **settings)
    run = exchange_steps(job, LAYOUT, gradients, steps=STEPS)
    expected = expected_parameters(job, LAYOUT, gradients, ["bucket:1kB"] * STEPS)
    for seen, exact in zip(run.parameters, expected, strict=True):
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("servers", "downlink"), [(0, "auto"), (2, "auto"), (1, "doublesqueeze")])
@pytest.mark.parametrize("slack", ["none", 0.0, 1.0])
def test_a_threshold_is_made_anew_where_its_count_leaves_the_slack(
    servers: int, slack: float | str, downlink: str
) -> None:
    """Gradients grow: a threshold of before selects more and more, as many as there are where nothing bounds it."""

    def growing(rank: int, step: int) -> Values:
        return gradients(rank, step) * np.float32(1.5**step)

    job = job_of(servers, 2, {"momentum": 0.0}, threshold_slack=slack, downlink=downlink, refresh_every=5)
    run = exchange_steps(job, LAYOUT, growing, steps=STEPS)
    expected = expected_parameters(job, LAYOUT, growing, ["bucket:1kB"] * STEPS)
    for seen, exact in zip(run.parameters, expected, strict=True):
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize(
    ("value_type", "threshold", "servers", "downlink"),
    [
        *(("int8", "layer", 0, "exact"), ("int8", "group", 0, "dense")),
        *(("int8", "group", 2, "exact"), ("int8", "layer", 2, "dense")),
        *(("int4", "group", 0, "exact"), ("int4", "layer", 2, "exact"), ("int4", "layer", 0, "dense")),
        *(("int2", "layer", 0, "dense"), ("int2", "group", 2, "dense"), ("int2", "layer", 2, "exact")),
    ],
)
def test_values_of_few_bits_are_multiples_and_what_is_rounded_away_is_sent_later(
    value_type: str, threshold: str, servers: int, downlink: str
) -> None:
    job = job_of(servers, 3, {"momentum": 0.0}, downlink=downlink, value_type=value_type, threshold=threshold)
    run = exchange_steps(job, LAYOUT, gradients, steps=STEPS)
    expected = expected_parameters(job, LAYOUT, gradients, ["bucket:1kB"] * STEPS)
    for seen, exact in zip(run.parameters, expected, strict=True):
        assert len({values.tobytes() for values in seen}) == 1
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bits", ["int8", "int4", "int2"])
@pytest.mark.parametrize("servers", [1, 3])
def test_sums_of_few_bits_come_back_and_what_is_rounded_away_comes_later(servers: int, bits: str) -> None:
    job = job_of(servers, 3, {"momentum": 0.9}, momentum_at="workers", downlink_value_type=bits)
    run = exchange_steps(job, LAYOUT, gradients, steps=STEPS)
    expected = expected_parameters(job, LAYOUT, gradients, ["bucket:1kB"] * STEPS)
    for seen, exact in zip(run.parameters, expected, strict=True):
        assert len({values.tobytes() for values in seen}) == 1
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("servers", "up", "down", "momentum"),
    [
        *((2, "int8", "fp32", 0.0), (2, "int4", "int8", 0.0), (2, "int4", "int8", 0.5)),
        *((2, "int2", "int4", 0.0), (2, "int2", "int4", 0.5), (0, "int8", "fp32", 0.5), (0, "int2", "fp32", 0.0)),
    ],
)
def test_all_values_go_in_few_bits(servers: int, up: str, down: str, momentum: float) -> None:
    settings = {"method": "quantized", "value_type": up, "downlink_value_type": down}
    job = job_of(servers, 3, {"momentum": momentum}, **settings)
    run = exchange_steps(job, LAYOUT, whole_gradients, steps=STEPS)
    expected = expected_parameters(job, LAYOUT, whole_gradients, ["bucket:1kB"] * STEPS)
    for seen, exact in zip(run.parameters, expected, strict=True):
        assert len({values.tobytes() for values in seen}) == 1
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-5)


def test_an_eighth_of_the_bytes_goes_in_four_bits() -> None:
    layout = layout_of(200_000, 50_000)

    def total(**compression: object) -> tuple[int, int]:
        job = job_of(1, 2, {"momentum": 0.0}, **compression)
        run = exchange_steps(job, layout, lambda rank, step: wide(layout, rank, step), steps=2)
        return sum(each.sent_bytes for each in run.totals[-1]), sum(each.received_bytes for each in run.totals[-1])

    dense = total(method="none")
    few = total(method="quantized", value_type="int4", downlink_value_type="int4")
    assert few[0] < dense[0] / 7.9
    # Zeros are left out of what comes back, and positions are told in turn.
    assert few[1] < dense[1] / 6


def test_few_bits_take_fewer_bytes_back() -> None:
    layout = layout_of(200_000, 50_000)

    def received(**compression: object) -> int:
        job = job_of(1, 3, {"momentum": 0.0}, density=0.01, **compression)
        run = exchange_steps(job, layout, lambda rank, step: wide(layout, rank, step), steps=3)
        return sum(each.received_bytes for each in run.totals[-1])

    assert received(downlink_value_type="int4", value_type="int4") < received(value_type="int4") / 2.5


# The other pairs of few bits are above, with the values that they have to come to.
@pytest.mark.parametrize(
    ("downlink", "value_type"),
    [
        *((downlink, half) for downlink in ("exact", "doublesqueeze", "dense") for half in ("fp16", "bf16")),
        *(("doublesqueeze", "int8"), ("doublesqueeze", "int4"), ("doublesqueeze", "int2"), ("dense", "int4")),
    ],
)
def test_replicas_stay_equal_with_rounded_values(downlink: str, value_type: str) -> None:
    run = exchange_steps(job_of(2, 3, {}, downlink=downlink, value_type=value_type), LAYOUT, gradients, steps=STEPS)
    for replicas in run.parameters:
        assert len({values.tobytes() for values in replicas}) == 1


@pytest.mark.parametrize("servers", [0, 2])
def test_everything_kept_is_the_dense_exchange(servers: int) -> None:
    """At density 1 nothing is held back: the same numbers as without compression, up to rounding."""
    optimizer: dict[str, object] = {"momentum": 0.9, "weight_decay": 0.01}
    sparse = exchange_steps(job_of(servers, 2, optimizer, density=1.0, refresh_every=1), LAYOUT, gradients)
    dense = exchange_steps(job_of(servers, 2, optimizer, method="none"), LAYOUT, gradients)
    for some, every in zip(sparse.parameters, dense.parameters, strict=True):
        np.testing.assert_allclose(some[0], every[0], rtol=1e-5, atol=1e-6)


def test_bytes_fall_with_the_density() -> None:
    layout = layout_of(200_000, 50_000)

    def total(**compression: object) -> tuple[int, int]:
        job = job_of(1, 3, {}, **compression)
        run = exchange_steps(job, layout, lambda rank, step: wide(layout, rank, step), steps=3)
        return sum(each.sent_bytes for each in run.totals[-1]), sum(each.received_bytes for each in run.totals[-1])

    dense, sparse = total(method="none"), total(density=0.01)
    assert sum(sparse) < sum(dense) / 20
    assert total(density=0.01, downlink="doublesqueeze")[1] < sparse[1] / 1.8


def wide(layout: Layout, rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(layout.elements, dtype=np.float32)


@pytest.mark.parametrize(
    ("workers", "slack", "value_type"),
    [(each, *rest) for each in (1, 2, 3, 5) for rest in (("none", "fp32"), (0.25, "int8"))] + [(3, 0.25, "fp32")],
)
def test_what_a_tree_rejects_is_kept_until_it_is_sent(workers: int, slack: float | str, value_type: str) -> None:
    """Steps without gradients empty what was held back: then everything has been applied, once."""
    # With a larger share all is sent in fewer steps; a tree of two and more still rejects most.
    settings = {"threshold_slack": slack, "value_type": value_type, "density": 0.25}
    job = job_of(0, workers, {"momentum": 0.0}, downlink="doublesqueeze", **settings)
    plan = first_plan(job, LAYOUT, one_host=False)
    plan = replace(plan, routes=(SparseAlgorithm.GTOPK,) * len(plan.groups), frame_elements=1000)
    # Where nothing bounds the count, a threshold of large gradients sends nothing of small ones while it is reused;
    # and what is rounded away comes again.
    steps = STEPS + (6 if slack != "none" and value_type == "fp32" else 18) * workers

    def some(rank: int, step: int) -> Values:
        given = gradients(rank, step)
        return given if step <= STEPS else np.zeros_like(given)

    run = exchange_steps(job, LAYOUT, some, steps=steps, plan=plan)
    before = initial_parameters(LAYOUT)
    for seen in run.parameters:
        assert len({values.tobytes() for values in seen}) == 1
        for group in plan.groups:
            start, stop = LAYOUT.offsets[group.first_layer], LAYOUT.offsets[group.last_layer + 1]
            changed = np.count_nonzero(seen[0][start:stop] != before[start:stop])
            assert changed <= 0.25 * (stop - start) + 2  # ceil, in each of at most two parts
        before = seen[0]
    applied = (initial_parameters(LAYOUT) - before).astype(np.float64) / 0.1 * workers
    everything = np.sum([gradients(rank, step) for rank in range(workers) for step in range(1, STEPS + 1)], axis=0)
    np.testing.assert_allclose(applied, everything, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("workers", "density", "downlink", "expected"),
    [
        (2, 0.01, "auto", SparseAlgorithm.ALLGATHER),
        (32, 0.3, "auto", SparseAlgorithm.REDUCE_SCATTER),
        (32, 0.01, "doublesqueeze", SparseAlgorithm.GTOPK),
    ],
)
def test_the_first_plan_takes_the_route_of_the_fewest_bytes(
    workers: int, density: float, downlink: str, expected: SparseAlgorithm
) -> None:
    job = job_of(0, workers, {"momentum": 0.0}, density=density, downlink=downlink)
    assert set(first_plan(job, LAYOUT, one_host=False).routes) == {expected}
    assert expected in SPARSE_ROUTES
    assert first_plan(job_of(1, workers, {"momentum": 0.0}), LAYOUT, one_host=False).routes == ()


def test_buffers_hold_the_selections_of_all_layers_of_a_group() -> None:
    """LAGS selects from every layer of a group; no layer's share fits into the room of another."""
    layout = layout_of(*[100] * 12)
    job = make_job(
        2,
        2,
        exchange={"plan": "single"},
        compression={"method": "lags", "density": 0.3},
        optimizer={"learning_rate": 0.1, "momentum": 0.0},
    )

    def given_by(rank: int, step: int) -> Values:
        return np.random.default_rng([rank, step]).standard_normal(layout.elements, dtype=np.float32)

    run: Run = exchange_steps(job, layout, given_by, steps=3)
    expected = expected_parameters(job, layout, given_by, ["single"] * 3)
    for seen, exact, times in zip(run.parameters, expected, run.times, strict=True):
        np.testing.assert_allclose(seen[0], exact, rtol=2e-5, atol=2e-5)
        assert times[0][0].selected == 12 * 30


def ends_by_plan(servers: int, **compression: object) -> list[set[bytes]]:
    """The ends of seven steps: by one layer a message, merged, with small frames, and where the plan changes."""
    exchange = {"kind": "server" if servers else "ring", "plan": "auto"}
    ends = []
    for own, changes in (
        ({}, {}),
        ({"plan": "single"}, {}),
        ({"plan": "bucket:1kB", "frame_bytes": 4096}, {}),
        ({}, {2: "single", 5: "per-layer"}),
    ):
        job = make_job(
            max(1, servers),
            3,
            exchange={**exchange, **own},
            compression={"density": 0.1, "refresh_every": 4, **compression},
            optimizer={"learning_rate": 0.1, "momentum": 0.5},
        )
        ends.append(exchange_steps(job, LAYOUT, gradients, steps=STEPS, plans=changes).ends)
    return ends


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize(("method", "downlink"), [("lags", "exact"), ("dlgs", "exact"), ("dlgs", "dense")])
def test_with_thresholds_by_layer_no_bit_depends_on_the_plan(servers: int, method: str, downlink: str) -> None:
    """Neither on how layers are merged, nor on frames, nor on a change of both between two exact selections."""
    ends = ends_by_plan(servers, method=method, downlink=downlink)
    assert len(set.union(*ends)) == 1


def test_with_thresholds_by_layer_answers_that_are_selected_do_not_depend_on_the_plan_either() -> None:
    """As long as a frame does not cut a layer: `frame_bytes` does here."""
    per_layer, single, _, changing = ends_by_plan(2, method="dlgs", downlink="doublesqueeze")
    assert len(per_layer | single | changing) == 1


def test_with_thresholds_by_group_they_do() -> None:
    ends = ends_by_plan(2, method="dlgs", threshold="group")
    assert len(set.union(*ends)) == 4
