"""Clipping by the norm of the whole gradient: the oracle's parameters on every way, and the same bits on all."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import pytest
from support.cluster import layout_of
from support.exchanges import Run, exchange_steps, regrouped, run_workers
from support.oracle import expected_parameters
from support.ways import Way
from support.worker import Values, Worker

from taihu.core.base.errors import ConfigError, TaihuError
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.job import Job, load_job

LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2, 3000)
STEPS = 4
WAYS = (
    *(Way("server", 0, transport=transport) for transport in ("same-host", "tcp", "grpc")),
    *(Way("ring", 0, transport=transport) for transport in ("same-host", "tcp")),
    Way("ring", 1),
    *(Way("ring", zero, precision) for zero in (2, 3) for precision in ("fp32", "bf16", "fp16")),
)


def group_of(way: Way) -> pytest.MarkDecorator:
    """Tests of ways that have to end alike run in one process, so that each run is made once."""
    return pytest.mark.xdist_group(f"clipping {way.kind} {way.precision}")


ways = pytest.mark.parametrize("way", [pytest.param(way, id=str(way), marks=group_of(way)) for way in WAYS])


def gradients(rank: int, step: int) -> Values:
    """Their mean has a norm of about 59, 6, 59 and 6."""
    drawn = np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)
    return drawn if step % 2 else drawn * np.float32(0.1)


def job_of(way: Way, workers: int = 3, largest: float = 20.0) -> Job:
    optimizer = {"name": "sgd", "momentum": 0.5, "learning_rate": 0.1, "clip": "whole", "clip_norm": largest}
    return way.job(2, workers, optimizer=optimizer)


@cache
def run_of(way: Way, strategy: str = "per-layer") -> Run:
    job = job_of(way)
    plan = None
    if way.kind == "ring":
        plan = regrouped(job, first_plan(job, LAYOUT, one_host=False), strategy)
    return exchange_steps(job, LAYOUT, gradients, steps=STEPS, plan=plan)


@ways
def test_updates_are_those_of_a_gradient_clipped_as_a_whole(way: Way) -> None:
    run = run_of(way)
    expected = expected_parameters(job_of(way), LAYOUT, gradients, ["per-layer"] * STEPS)
    rtol = {"fp32": 1e-4, "fp16": 2**-10, "bf16": 2**-7}[way.precision]
    for step, (seen, exact) in enumerate(zip(run.parameters, expected, strict=True), 1):
        assert len({values.tobytes() for values in seen}) == 1, f"workers differ after step {step}"
        np.testing.assert_allclose(
            seen[0], exact, rtol=rtol, atol=1e-5 if way.precision == "fp32" else 0.01, err_msg=f"step {step}"
        )


FIRST_OF_FAMILIES = {(way.kind, way.precision): way for way in reversed(WAYS)}


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=group_of(way)) for family, way in FIRST_OF_FAMILIES.items()]
)
def test_neither_transport_nor_stage_nor_groups_change_a_bit(family: tuple[str, str]) -> None:
    members = [way for way in WAYS if (way.kind, way.precision) == family]
    ends = {end for way in members for end in run_of(way).ends}
    if family[0] == "ring":
        ends |= set(run_of(members[-1], "single").ends)
        ends |= set(run_of(members[0], "bucket:9kB").ends)
    assert len(ends) == 1


# Servers count what they have summed as done, and would have to go back.
REPLAYED = [
    pytest.param(way, whole, id=f"{way}-{whole}", marks=group_of(way))
    for way in WAYS
    for whole in ((False,) if way.kind == "server" else (False, True))
    if way.zero < 3 and way.precision != "fp16"
]


@pytest.mark.parametrize(("way", "whole"), REPLAYED)
def test_an_attempt_that_was_given_up_is_replayed(way: Way, whole: bool) -> None:
    """Some groups have been summed when all give up; or all have, and those that were updated stay so."""
    ended = threading.Event()

    def work(worker: Worker) -> bytes:
        worker.step(1, gradients(worker.rank, 1))
        own = gradients(worker.rank, 2)
        worker.exchange.begin(2)
        for group in range(len(worker.bounds) if whole else 1):
            if way.kind == "ring" or worker.rank:
                worker.push(group, own)
        if worker.rank == 0 and whole:
            worker.exchange.complete(0)
        ended.set() if worker.rank == 0 else ended.wait(120)
        worker.exchange.abort(2)
        worker.backward(2, own, attempt=1)
        worker.read()
        return worker.step(3, gradients(worker.rank, 3), attempt=1).tobytes()

    seen = run_workers(job_of(way), LAYOUT, work)
    assert set(seen) == {run_of(way).parameters[2][0].tobytes()}


def test_one_worker_clips_as_well() -> None:
    job = job_of(WAYS[3], workers=1)
    run = exchange_steps(job, LAYOUT, gradients, steps=2)
    expected = expected_parameters(job, LAYOUT, gradients, ["single"] * 2)
    np.testing.assert_allclose(run.parameters[-1][0], expected[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[4], WAYS[6]], ids=str)
def test_a_gradient_that_is_not_finite_ends_the_run(way: Way) -> None:
    def broken(rank: int, step: int) -> Values:
        values = gradients(rank, step).copy()
        values[5000] = np.inf if rank == 1 else 0
        return values

    with pytest.raises(TaihuError, match="finite"):
        exchange_steps(job_of(way), LAYOUT, broken, steps=1)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"exchange": {"kind": "server"}}, r"optimizer.clip 'whole' needs all sums .* set exchange.zero = 0"),
        ({"compression": {"method": "dlgs"}}, "optimizer.clip_norm clips dense gradients"),
        ({"exchange": {"kind": "ring", "fc": "shard"}}, "optimizer.clip_norm clips gradients of whole layers"),
    ],
)
def test_what_it_does_not_go_with_is_refused(sections: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_job(None, {"optimizer": {"clip_norm": 1.0, "clip": "whole"}, **sections})
