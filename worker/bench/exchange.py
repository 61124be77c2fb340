"""Rounds of the exchange of a job with the layer shapes of a model, without computing anything."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taihu.core.base.errors import ConfigError
from taihu.core.base.measure import spread
from taihu.core.coordination.listener import Listener
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.carriage import Carriage
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.frames.headers import BYTES_PER_VALUE
from taihu.core.wire.links.pipe import Carrier
from taihu.worker.bench.gradients import DrawnGradients
from taihu.worker.exchange.session import Exchanged, Joining, Reporting, Session, take_part
from taihu.worker.exchange.shell import Exchange
from taihu.worker.memory.arenas import Arenas, arenas_of
from taihu.worker.training.hashing import exchanged_sha256
from taihu.worker.training.plan_follower import group_measurement
from taihu.worker.training.step_driver import StepDriver

_TRIAL = 6
_ONE_BY_ONE = 4
_TURN = 2


@dataclass(frozen=True)
class Rounds:
    """The rounds of a bench: `counted` after `warmup` that do not count; so many by each of `against` as well."""

    counted: int
    warmup: int = 0
    against: tuple[Carrier, ...] = ()


def exchange_rounds(
    job: Job, rank: int, layout: Layout, rounds: Rounds, listener: Listener | None = None
) -> dict[str, Any]:
    """Exchange gradients of `layout` as `job` says; all workers of the job do so together.

    A round is what a step exchanges: backward makes the layers' gradients ready one after the other, and all layers'
    parameters are read behind it. Where transport and frames are to be measured first, some rounds more do that.
    Other carriers take turns with what the job takes, a few rounds each, of which the first does not count.

    Args:
        job: a bench's, see `taihu.cli.bench.exchange`.
        rank: of this worker.
        layout: of the model.
        rounds: how many.
        listener: where other workers reach this one in a job without servers.

    Raises:
        ConfigError: other carriers are asked for where values lie in shared memory.
        TaihuError: the exchange failed.
    """
    arenas = arenas_of(job, layout.elements)
    with take_part(job, rank, Exchanged(layout, arenas), Reporting(), Joining(listener)) as session:
        bench = _Bench(job, rank, arenas, session)
        bench.run(rounds.warmup)
        bench.try_links()
        if rounds.against and "same-host" in session.exchange.path:
            raise ConfigError(
                f"--against {','.join(rounds.against)}: values lie in shared memory here; add --set "
                "exchange.transport=tcp"
            )
        bench.measure(rounds)
        parameters = exchanged_sha256(session.exchange, arenas.parameters)
        session.client.finish(parameters_sha256=parameters)
    return bench.results()


@dataclass
class _Sums:
    """Sums over the rounds of one way that were counted."""

    sent_bytes: int = 0
    received_bytes: int = 0
    selected: int = 0
    exact: int = 0


class _Bench:
    """One worker's rounds; steps are counted on from 1."""

    def __init__(self, job: Job, rank: int, arenas: Arenas, session: Session) -> None:
        self._job = job
        self._arenas = arenas
        self._session = session
        self._exchange: Exchange = session.exchange
        self._driver = StepDriver(self._exchange)
        self._layers = range(len(self._exchange.plan.layout.layers))
        self._clock = SystemClock()
        self._gradients = DrawnGradients(self._exchange.plan.layout, (job.train.seed, rank))
        self._is_paged = arenas.gradient_pages is not None
        # Sums of all workers come over a worker's own gradients.
        self._gets_sums = not self._is_paged and (not job.servers or not job.stage.divides_optimizer)
        if not self._is_paged:
            arenas.gradients[:] = self._gradients.values
        self._step = 0
        self._path = ""
        self._sums: dict[str, _Sums] = defaultdict(_Sums)
        self._trial: list[tuple[str, float]] = []
        self._seconds: dict[str, list[float]] = {"": []}
        for layer in reversed(self._layers):
            self._driver.read(layer)

    def run(self, rounds: int) -> list[float]:
        """The seconds of each of `rounds` rounds."""
        return [self._round() for _ in range(rounds)]

    def try_links(self) -> None:
        """Let the plan choose a carrier and the size of frames, if it wants to measure what they take."""
        chooses_frames = self._job.servers and self._job.exchange.frame_bytes is None
        if self._exchange.plan.carriage != "trial" and not (chooses_frames and self._job.plans_by_measuring):
            return
        measured = [self._measured(self._round()) for _ in range(_TRIAL)]
        self._trial = [(step.path, step.exchange_seconds) for step in measured]
        measured += [self._measured(self._round(one_by_one=True), serial=True) for _ in range(_ONE_BY_ONE)]
        plan = self._session.client.report_steps(self._step, measured, self._job.exchange.timeout_s)
        self._driver.adopt(plan)

    def measure(self, rounds: Rounds) -> None:
        """Count rounds of the job's own way, and of others in turns with it."""
        ways: dict[str, Carriage] = {"": self._exchange.plan.carriage, **{name: name for name in rounds.against}}
        self._seconds = {name: [] for name in ways}
        turn = _TURN if rounds.against else rounds.counted
        # Every way comes behind every other one.
        orders = itertools.cycle(itertools.permutations(ways))
        for first, names in zip(range(0, rounds.counted, turn), orders, strict=False):
            for name in names:
                if rounds.against:
                    self._driver.adopt(replace(self._exchange.plan, carriage=ways[name]))
                    # What lay idle meanwhile begins slowly.
                    self._round()
                self._count(name, min(turn, rounds.counted - first))

    def _count(self, name: str, rounds: int) -> None:
        for _ in range(rounds):
            self._seconds[name].append(self._round())
            # Whoever adds up makes the others wait for its next round: all ways do.
            self._add_up(self._sums[name])
        if not name:
            self._path = self._exchange.path

    def _add_up(self, sums: _Sums) -> None:
        groups = self._exchange.group_times()
        sums.sent_bytes += sum(times.bytes_up + times.fetch_bytes_up for times in groups)
        sums.received_bytes += sum(times.bytes_down + times.fetch_bytes_down for times in groups)
        sums.selected += sum(times.selected for times in groups)
        sums.exact += any(times.refreshed for times in groups)

    def results(self) -> dict[str, Any]:
        """Everything measured, and what it was measured of."""
        job, sums, own = self._job, self._sums[""], self._seconds[""]
        compresses = job.compression.method.selects
        elements = self._exchange.plan.layout.elements
        return {
            "seconds_per_round": spread(own),
            **{f"{name}_seconds": spread(seconds) for name, seconds in self._seconds.items() if name},
            "all_seconds": {name or "own": seconds for name, seconds in self._seconds.items()},
            "trial": self._trial,
            "bytes_sent_per_round": sums.sent_bytes // len(own),
            "bytes_received_per_round": sums.received_bytes // len(own),
            "groups": len(self._exchange.plan.groups),
            "frame_bytes": self._exchange.plan.frame_elements * BYTES_PER_VALUE,
            "path": self._path,
            "kind": job.exchange.kind.key,
            "zero": job.stage.key,
            "precision": job.train.precision,
            "compression": job.compression.method.key,
            "density": job.compression.density if compresses else 1.0,
            "downlink": job.downlink,
            "selected_ratio": sums.selected / (elements * len(own)),
            "rounds_with_exact_thresholds": sums.exact,
            "skipped_rounds": self._exchange.skipped_steps,
        }

    def _round(self, *, one_by_one: bool = False) -> float:
        """One round, which may exchange groups one at a time; returns its seconds."""
        self._step += 1
        if self._job.compression.method.selects:
            self._gradients.draw(self._arenas.gradients)
        elif self._gets_sums:
            # They would grow beyond all numbers in some dozens of rounds.
            self._arenas.gradients[:] = self._gradients.values
        driver, begin_s = self._driver, self._clock.now()
        driver.begin(self._step, one_by_one=one_by_one)
        for layer in self._layers:
            driver.prepare(layer)
            if self._is_paged:
                self._write(layer)
            driver.ready(layer)
        driver.end_backward()
        for layer in reversed(self._layers):
            driver.read(layer)
        return self._clock.now() - begin_s

    def _write(self, layer: int) -> None:
        """The gradients of a layer, whose memory had been given back."""
        offsets = self._exchange.plan.layout.offsets
        part = slice(offsets[layer], offsets[layer + 1])
        scale = np.float32(self._exchange.loss_scale)
        np.multiply(self._gradients.values[part], scale, out=self._arenas.gradients[part])

    def _measured(self, seconds: float, *, serial: bool = False) -> StepMeasurement:
        groups = tuple(map(group_measurement, self._exchange.group_times()))
        nothing = (0.0,) * len(self._layers)
        return StepMeasurement(self._step, serial, 0.0, nothing, groups, seconds, self._exchange.path)
