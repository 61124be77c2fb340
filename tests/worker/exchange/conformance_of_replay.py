"""The rules of a step that is given up and begun again: the bits of a run that was not disturbed, on all routes."""

from __future__ import annotations

import threading

from support.exchanges import run_workers
from support.undisturbed import LAYOUT, STEPS, change_plan, gradients, job_of, parametrized, plan_of, run_of
from support.ways import DENSE, WAYS, Way
from support.worker import Worker

GIVEN_UP = (2, 4)
"""With a group for every layer, and, where the plan changes, with few."""


@parametrized(WAYS)
def test_a_step_that_was_given_up_and_replayed_ends_with_the_same_bits(way: Way) -> None:
    """Worker 1 pushes nothing of the first attempts, so that no sum of them is ever complete.

    What was compressed has left the residual, which recovery brings back: of compressed groups none is pushed.
    """
    given_up = threading.Barrier(3)

    def work(worker: Worker) -> bytes:
        attempt = 0
        known = worker.read()
        for step in range(1, STEPS + 1):
            own = gradients(worker.rank, step)
            for _ in range(2 if step in GIVEN_UP else 0):
                worker.exchange.begin(step, attempt)
                # Where parameters are gathered, all do so together.
                worker.exchange.prepare(0)
                if way.is_dense and worker.rank != 1:
                    worker.push(0, own, known)
                worker.exchange.abort(step)
                given_up.wait(120)
                attempt += 1
            worker.backward(step, own, known=known, attempt=attempt)
            known = worker.read()
            change_plan(way, worker, step)
        worker.complete()
        return known.tobytes()

    assert set(run_workers(job_of(way), LAYOUT, work, plan=plan_of(way))) == run_of(way).ends


@parametrized([way for way in DENSE if way.kind == "ring" and way.precision != "fp16"])
def test_a_group_that_a_worker_had_updated_is_not_updated_again_by_the_replay(way: Way) -> None:
    """Worker 0 gives up what it has completed, the others wherever they are; with fp16 none is ended before all."""
    ended = threading.Event()

    def work(worker: Worker) -> bytes:
        worker.read()
        worker.exchange.begin(1)
        for group in (0, 1):
            worker.push(group, gradients(worker.rank, 1))
        if worker.rank == 0:
            worker.exchange.complete(0)
            ended.set()
        ended.wait(120)
        worker.exchange.abort(1)
        worker.backward(1, gradients(worker.rank, 1), attempt=1)
        worker.read()
        return worker.step(2, gradients(worker.rank, 2), attempt=1).tobytes()

    undisturbed = {values.tobytes() for values in run_of(way).parameters[1]}
    assert set(run_workers(job_of(way), LAYOUT, work, plan=plan_of(way))) == undisturbed
