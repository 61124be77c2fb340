"""Rounds of dense push and pull with the layer shapes of a model, without computing anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.job import Job
from taihu.layout import Layout
from taihu.measure import spread
from taihu.planner.groups import group_bounds
from taihu.planner.measurement import StepMeasurement
from taihu.wire.clock import SystemClock
from worker.exchange.shell import Exchange
from worker.memory.arenas import Arenas, arenas_of
from worker.session import Exchanged, Reporting, take_part
from worker.training.hashing import exchanged_sha256
from worker.training.plan_follower import group_measurement

__all__ = ["exchange_rounds"]

_TRIAL = 6


def exchange_rounds(job: Job, rank: int, layout: Layout, *, rounds: int, warmup: int) -> dict[str, Any]:
    """Exchange a gradient of `layout` `warmup + rounds` times; all workers of the job do so together.

    A round pushes every group in backward order and ends when every group has been pulled. Where the transport is to
    be tried first, some rounds more do that.
    """
    random = np.random.default_rng([job.train.seed, rank])
    arenas = arenas_of(job, layout.elements)
    gradients = arenas.gradients if arenas.gradient_pages is None else np.empty(layout.elements, dtype=np.float32)
    random.standard_normal(out=gradients, dtype=np.float32)
    clock = SystemClock()
    with take_part(job, rank, Exchanged(layout, arenas), Reporting()) as session:
        exchange = session.exchange

        def run(steps: range) -> list[float]:
            return [_round(exchange, step, clock, arenas, gradients) for step in steps]

        run(range(1, warmup + 1))
        first = warmup + 1
        if exchange.plan.carriage == "trial":
            tried = range(first, first + _TRIAL)
            trial = [_measured(exchange, step, run(range(step, step + 1))[0]) for step in tried]
            first += _TRIAL
            exchange.adopt(session.client.report_steps(first - 1, trial, job.exchange.timeout_s))
        before = exchange.totals()
        seconds = run(range(first, first + rounds))
        totals = exchange.totals()
        session.client.finish(parameters_sha256=exchanged_sha256(exchange, arenas.parameters))
    return {
        "seconds_per_round": spread(seconds),
        "bytes_sent_per_round": (totals.sent_bytes - before.sent_bytes) // rounds,
        "bytes_received_per_round": (totals.received_bytes - before.received_bytes) // rounds,
        "groups": len(exchange.groups),
        "path": exchange.path,
    }


def _measured(exchange: Exchange, step: int, seconds: float) -> StepMeasurement:
    layers = len(exchange.plan.layout.layers)
    groups = tuple(map(group_measurement, exchange.group_times()))
    return StepMeasurement(step, False, 0.0, (0.0,) * layers, groups, seconds)


def _round(
    exchange: Exchange, step: int, clock: SystemClock, arenas: Arenas, gradients: NDArray[np.float32]
) -> float:
    begin_s = clock.now()
    exchange.begin(step)
    for group, (start, stop) in enumerate(group_bounds(exchange.plan.layout, exchange.groups)):
        exchange.prepare(group)
        if arenas.gradient_pages is not None:
            arenas.gradients[start:stop] = gradients[start:stop]
        exchange.push(group)
    for group in reversed(range(len(exchange.groups))):
        exchange.wait(group)
    return clock.now() - begin_s
