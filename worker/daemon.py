"""The life of a worker process: load, join, train, report, and end with the run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from threadpoolctl import threadpool_limits

from taihu.coordination.client import coordinator_address
from taihu.errors import ConfigError
from taihu.job import Job
from taihu.wire.clock import SystemClock
from taihu.wire.metrics import MetricsPage, WorkerMetrics
from worker.data import Batches, Dataset, load_dataset
from worker.engine import Model, build_model
from worker.exchange import GradientExchange
from worker.hashing import parameters_sha256
from worker.progress import ProgressMeter, StepSample
from worker.saving import SavedModel, save_model
from worker.server_link import Arenas
from worker.session import take_part
from worker.trainer import Trainer, evaluate

__all__ = ["WorkerDaemon", "WorkerOptions"]


@dataclass(frozen=True)
class WorkerOptions:
    """What differs between the workers of a job; `save` is honoured by worker 0."""

    rank: int
    metrics_port: int | None = None
    save: Path | None = None


@dataclass(frozen=True)
class Replica:
    """What a worker trains: a model bound to its arenas, and the data."""

    model: Model
    arenas: Arenas
    dataset: Dataset
    batches: Batches


class WorkerDaemon:
    """One worker process."""

    def __init__(self, job: Job, options: WorkerOptions) -> None:
        if not 0 <= options.rank < job.cluster.workers:
            raise ConfigError(
                f"worker {options.rank}: outside the world of {job.cluster.workers} workers; expected --rank 0 to "
                f"{job.cluster.workers - 1}, or raise cluster.workers"
            )
        coordinator_address(job)  # says what is missing before the data is loaded
        self._job = job
        self._options = options
        self._log = structlog.get_logger().bind(role="worker", rank=options.rank)
        self._clock = SystemClock()
        self._metrics = WorkerMetrics(options.rank)

    def run(self) -> dict[str, Any]:
        """Train to the end; returns this worker's results.

        Raises:
            TaihuError: what went wrong; the coordinator has been told.
        """
        replica = self._build()
        with ExitStack() as stack:
            if self._job.cluster.threads:
                stack.enter_context(threadpool_limits(self._job.cluster.threads))
            if self._options.metrics_port is not None:
                page = stack.enter_context(MetricsPage(self._metrics.registry, self._options.metrics_port))
                self._log.info("metrics", port=page.port)
            return self._take_part(replica)

    def _build(self) -> Replica:
        """Load the data and build the model; worker 0's parameters are the job's."""
        dataset = load_dataset(self._job.data.name, self._job.data.path)
        batches = self._batches(dataset)
        model = build_model(self._job.model.name, dataset.image_shape, dataset.classes)
        arenas = Arenas(*(np.zeros(model.layout.elements, dtype=np.float32) for _ in range(2)))
        model.bind(arenas.parameters, arenas.gradients)
        if self._options.rank == 0:
            model.initialize(self._job.train.seed)
        return Replica(model, arenas, dataset, batches)

    def _take_part(self, replica: Replica) -> dict[str, Any]:
        """From joining to finishing."""
        layout, arenas = replica.model.layout, replica.arenas
        total = self._job.train.steps or self._job.train.epochs * replica.batches.steps_per_epoch
        meter = ProgressMeter(total_steps=total, batch=self._job.train.batch)
        with take_part(self._job, self._options.rank, layout, arenas, lambda: meter.progress) as session:
            exchange = session.exchange
            self._log.info("training", steps=total, parameters=layout.elements, groups=len(exchange.groups))
            trainer = Trainer(
                job=self._job,
                rank=self._options.rank,
                model=replica.model,
                batches=replica.batches,
                exchange=exchange,
                meter=meter,
                clock=self._clock,
                on_step=self._observe,
            )
            self._train(trainer, meter, replica, total)
            digest = parameters_sha256(arenas.parameters)
            self._save(replica, total)
            session.client.finish(progress=meter.progress, parameters_sha256=digest)
        self._log.info("finished", parameters_sha256=digest)
        return self._results(meter, digest, exchange)

    def _train(self, trainer: Trainer, meter: ProgressMeter, replica: Replica, total: int) -> None:
        per_epoch = replica.batches.steps_per_epoch
        for step in range(1, total + 1):
            trainer.step(step)
            if step % per_epoch == 0 or step == total:
                trainer.finish()
                self._evaluate(meter, replica, -(-step // per_epoch))

    def _evaluate(self, meter: ProgressMeter, replica: Replica, epoch: int) -> None:
        """Worker 0 tests its replica; the others meet it again in the next step's exchange."""
        if self._options.rank != 0 or not self._job.train.evaluate:
            return
        start = self._clock.now()
        tested = evaluate(replica.model, replica.dataset)
        evaluation = meter.evaluated(
            epoch=epoch, seconds=self._clock.now() - start, test_loss=tested.loss, test_accuracy=tested.accuracy
        )
        self._metrics.test_accuracy.set(tested.accuracy)
        self._log.info("evaluated", **asdict(evaluation))

    def _observe(self, step: int, sample: StepSample) -> None:
        metrics = self._metrics
        metrics.step_seconds.observe(sample.step_seconds)
        metrics.compute_seconds.observe(sample.compute_seconds)
        metrics.exchange_seconds.observe(sample.exchange_seconds)
        metrics.wait_seconds.observe(sample.wait_seconds)
        metrics.sent_bytes.inc(sample.sent_bytes)
        metrics.received_bytes.inc(sample.received_bytes)
        metrics.samples.inc(self._job.train.batch)
        metrics.step.set(step)
        metrics.loss.set(sample.loss)
        self._log.debug("step", step=step, **asdict(sample))

    def _save(self, replica: Replica, steps: int) -> None:
        if self._options.save is not None and self._options.rank == 0:
            data = replica.dataset
            saved = SavedModel(self._job.model.name, data.image_shape, data.classes, data.name, steps)
            save_model(self._options.save, replica.model, saved)

    def _results(self, meter: ProgressMeter, digest: str, exchange: GradientExchange) -> dict[str, Any]:
        totals = exchange.totals()
        return {
            "rank": self._options.rank,
            **meter.results(sent_bytes=totals.sent_bytes, received_bytes=totals.received_bytes),
            "parameters_sha256": digest,
            "groups": len(exchange.groups),
            "evaluations": [asdict(evaluation) for evaluation in meter.evaluations],
        }

    def _batches(self, dataset: Dataset) -> Batches:
        return Batches(
            dataset,
            batch=self._job.train.batch,
            workers=self._job.cluster.workers,
            rank=self._options.rank,
            seed=self._job.train.seed,
            augment=self._job.data.augment,
        )
