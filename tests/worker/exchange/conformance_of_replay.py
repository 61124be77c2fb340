"""The rules of a step that is given up and begun again: the bits of a run that was not disturbed, on all routes."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from support.cluster import layout_of
from support.exchanges import exchange_steps, run_workers
from support.ways import DENSE, WAYS, Way
from support.worker import Values, Worker

from taihu.coordination.plan import Plan
from taihu.coordination.planning import first_plan
from taihu.job import Job

LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2, 3000)
STEPS = 4
GIVEN_UP = 3


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def plan_of(way: Way, job: Job) -> Plan | None:
    if way.route is None:
        return None
    plan = first_plan(job, LAYOUT, one_host=False)
    return replace(plan, routes=(way.route,) * len(plan.groups))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_step_that_was_given_up_and_replayed_ends_with_the_same_bits(way: Way) -> None:
    """Worker 1 pushes nothing of the first attempts, so that no sum of them is ever complete.

    What was compressed has left the residual, which recovery brings back: of compressed groups none is pushed.
    """
    job = way.job(1 if way.downlink == "doublesqueeze" else 2)
    given_up = threading.Barrier(3)

    def work(worker: Worker) -> bytes:
        attempt = 0
        known = worker.read()
        for step in range(1, STEPS + 1):
            own = gradients(worker.rank, step)
            for _ in range(2 if step == GIVEN_UP else 0):
                worker.exchange.begin(step, attempt)
                # Where parameters are gathered, all do so together.
                worker.exchange.prepare(0)
                if way.is_dense and worker.rank != 1:
                    worker.push(0, own, known)
                worker.exchange.abort(step)
                given_up.wait(20)
                attempt += 1
            worker.backward(step, own, known=known, attempt=attempt)
            known = worker.read()
        worker.complete()
        return known.tobytes()

    plan = plan_of(way, job)
    undisturbed = exchange_steps(job, LAYOUT, gradients, steps=STEPS, plan=plan)
    assert set(run_workers(job, LAYOUT, work, plan=plan)) == undisturbed.ends


@pytest.mark.parametrize("way", [way for way in DENSE if way.kind == "ring" and way.precision != "fp16"], ids=str)
def test_a_group_that_a_worker_had_updated_is_not_updated_again_by_the_replay(way: Way) -> None:
    """Worker 0 gives up what it has completed, the others wherever they are; with fp16 none is ended before all."""
    job = way.job()
    ended = threading.Event()

    def work(worker: Worker) -> bytes:
        worker.read()
        worker.exchange.begin(1)
        for group in (0, 1):
            worker.push(group, gradients(worker.rank, 1))
        if worker.rank == 0:
            worker.exchange.complete(0)
            ended.set()
        ended.wait(20)
        worker.exchange.abort(1)
        worker.backward(1, gradients(worker.rank, 1), attempt=1)
        worker.read()
        return worker.step(2, gradients(worker.rank, 2), attempt=1).tobytes()

    undisturbed = exchange_steps(job, LAYOUT, gradients, steps=2)
    assert set(run_workers(job, LAYOUT, work)) == undisturbed.ends
