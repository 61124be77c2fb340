"""Workers of one job that take turns in one process, and what they send, with the bits of a run of processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression import GroupCompressor
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.optimization import OptimizerShard, in_steps
from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.packing import pack, packed_bound
from taihu.kernels.packing.few_bits import round_sums
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Model, StepContext, StepHooks, build_model
from taihu.worker.exchange.making import compressor_of, scheduled_rates
from taihu.worker.memory.arenas import arenas_of
from taihu.worker.reporting.compression_log import CompressionLog
from taihu.worker.training.evaluation import evaluate
from taihu.worker.training.hashing import parameters_sha256
from taihu.worker.training.local_steps import LocalSteps

__all__ = ["First", "RoundedSums", "Sent", "WorkersInTurns", "selected_of", "train_on_first"]

_TESTED: Final = 2000

Positions = NDArray[np.int32]
Values = NDArray[np.float32]


class Sent:
    """Bytes of selections, each way: of one worker's, and of what comes back wherever any worker sent something."""

    def __init__(self, elements: int, value_type: ValueType, down_type: ValueType = ValueType.FP32) -> None:
        self._elements, self._value_type, self._down_type = elements, value_type, down_type
        self.up_bytes = self.down_bytes = self.selected = self.most_selected = 0
        self._rounds = 0

    def add(self, selections: Sequence[tuple[Positions, Values]], union: Positions) -> None:
        """Count the selections of all workers in a step, and what comes back to each."""
        self._rounds += len(selections)
        counts = [len(indices) for indices, _ in selections]
        self.selected += sum(counts)
        self.most_selected = max(self.most_selected, *counts)
        self.up_bytes += sum(self._bytes_of(indices, self._value_type) for indices, _ in selections)
        self.down_bytes += len(selections) * self._bytes_of(union, self._down_type)

    def shares(self) -> dict[str, float]:
        """Selected values, and bytes up and down, as shares of the dense exchange's."""
        whole = max(1, self._rounds) * self._elements
        shares = (self.selected / whole, self.up_bytes / 4 / whole, self.down_bytes / 4 / whole)
        return dict(zip(("selected_ratio", "up", "down"), shares, strict=True))

    @property
    def peak(self) -> float:
        """The share of all values that the worker and step sent which sent most."""
        return self.most_selected / self._elements

    def _bytes_of(self, indices: Positions, value_type: ValueType) -> int:
        values = np.zeros(len(indices), dtype=np.float32)
        sections = np.zeros(packed_bound(len(indices), 1), dtype=np.uint8)
        count, size = pack(indices, values, np.array([[0, self._elements]]), values.copy(), sections)
        return value_type.bytes_of(count) + size


class RoundedSums:
    """Sums that are rounded to a few bits, as servers do, with what that leaves; fp32 values go as they are.

    Args:
        layout: each layer of it shares a step.
        down_type: of what comes back.
    """

    def __init__(self, layout: Layout, down_type: ValueType) -> None:
        offsets = np.array(layout.offsets, dtype=np.int64)
        self._bounds, self._bits = np.stack([offsets[:-1], offsets[1:]], axis=1), down_type.few_bits
        self._residual = np.zeros(layout.elements if self._bits else 0, dtype=np.float32)

    def round(self, union: Positions, sums: Values) -> tuple[Positions, Values]:
        """Places, ascending, and values of what comes back, for the sums at the places of `union`."""
        if not self._bits:
            return union, sums
        indices, values = np.empty_like(union), np.empty_like(sums)
        codes, steps = np.empty(len(union), dtype=np.uint8), np.empty(len(self._bounds), dtype=np.float32)
        count = round_sums(self._residual, union, sums, self._bounds, self._bits, indices, values, codes, steps)
        return indices[:count], values[:count]


def selected_of(
    compressor: GroupCompressor,
    groups: int,
    step: int,
    log: CompressionLog | None = None,
    rates: NDArray[np.float64] | None = None,
) -> tuple[Positions, Values]:
    """The positions and values that a worker sends of a step, ascending; `rates` as `GroupCompressor.compress`."""
    parts = []
    for group in range(groups):
        selection = compressor.compress(group, step, rates=rates)
        parts.append((selection.indices.copy(), compressor.decoded(selection).copy()))
        if log is not None:
            log.add(selection.outcome)
    indices, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(indices, kind="stable")
    return indices[order], values[order]


class WorkersInTurns:
    """The workers of a job and its server, in turns: one model stands for all replicas, which are the same bits."""

    def __init__(self, job: Job, model: Model, batches: Sequence[Batches]) -> None:
        self._job, self._model, self._batches = job, model, batches
        per_epoch = batches[0].steps_per_epoch
        self.per_epoch, self.steps = per_epoch, per_epoch * job.train.epochs
        length = RunLength(per_epoch * len(batches) * job.train.batch, per_epoch, self.steps)
        plan = replace(first_plan(job, model.layout, one_host=True), length=length)
        self._groups = len(plan.groups)
        self._arenas = arenas_of(job, model.layout.elements)
        model.bind(self._arenas.parameters, self._arenas.gradients)
        model.initialize(job.train.seed)
        self._optimizer = OptimizerShard(in_steps(job.server_optimizer, length), self._arenas.parameters)
        self._locals = [
            LocalSteps(model.layout, self._arenas, in_steps(job.optimizer, length), job.exchange.local_steps)
            for _ in batches
            if job.updates_locally
        ]
        is_dense = not job.compression.method.selects
        self._compressors = [] if is_dense else [compressor_of(job, plan, self._arenas) for _ in batches]
        self._rates = scheduled_rates(job, plan)
        self._select_s = 0.0
        self._total = np.zeros(model.layout.elements, dtype=np.float32)
        self._log = CompressionLog()
        down_type = ValueType.named(job.compression.downlink_value_type)
        self._rounded = RoundedSums(model.layout, down_type)
        self._sent = Sent(model.layout.elements, ValueType.named(job.compression.value_type), down_type)

    def run(self, dataset: Dataset) -> dict[str, Any]:
        """Train to the end."""
        epochs: list[dict[str, float]] = []
        losses = []
        for step in range(1, self.steps + 1):
            losses.append(self._step(step))
            if step % self.per_epoch == 0:
                scores = evaluate(self._model, dataset)
                row = {f"test_{name}": value for name, value in scores.metrics.items()}
                epochs.append({**row, "test_loss": scores.loss, "train_loss": fmean(losses[-self.per_epoch :])})
        thresholds = self._log.results() or {"units": None}
        return {
            **{name: value for name, value in epochs[-1].items() if name not in ("test_loss", "train_loss")},
            "epochs": epochs,
            **self._shares(),
            "peak_ratio": self._sent.peak,
            "select_seconds": self._select_s / self.steps / len(self._batches),
            "thresholds": thresholds["units"],
            "parameters_sha256": parameters_sha256(self._arenas.parameters),
        }

    def _shares(self) -> dict[str, float]:
        """Values and bytes of what is exchanged, as shares of an exchange of all behind every batch."""
        whole = {"selected_ratio": 1.0, "up": 1.0, "down": 1.0}
        shares = self._sent.shares() if self._compressors else whole
        return {name: share / self._job.exchange.local_steps for name, share in shares.items()}

    def _step(self, step: int) -> float:
        buffers = {name: array.copy() for name, array in self._model.buffers().items()}
        count, losses = len(self._batches), []
        pushed = []
        for rank in range(count):
            losses.append(self._train(rank, step))
            if rank == 0:  # Whose statistics of batches the model is tested with.
                kept = {name: array.copy() for name, array in self._model.buffers().items()}
            self._model.load_buffers(buffers)
            if self._compressors:
                log = self._log if rank == 0 else None
                rates = None if self._rates is None else self._rates.of(step)
                begun_s = time.perf_counter()
                pushed.append(selected_of(self._compressors[rank], self._groups, step, log, rates))
                self._select_s += time.perf_counter() - begun_s
            else:
                self._total += self._arenas.gradients
        self._model.load_buffers(kept)
        if self._compressors:
            for indices, values in pushed:
                self._total[indices] += values
            union = np.unique(np.concatenate([indices for indices, _ in pushed]))
            if self._job.downlink == "dense":  # all parameters change, and come back
                union = np.arange(len(self._total), dtype=np.int32)
            places, sums = self._rounded.round(union, self._total[union])
            self._sent.add(pushed, places)
            if self._job.downlink != "dense":
                self._optimizer.update_sparse(places, sums, step, scale=1 / count)
        if not self._compressors or self._job.downlink == "dense":
            self._optimizer.update(0, len(self._total), self._total, step, scale=1 / count)
        self._total[:] = 0.0
        return losses[0]

    def _train(self, rank: int, step: int) -> float:
        """Put into the arena of gradients the values that a worker exchanges of a step; returns its loss."""
        if not self._locals:
            return self._pass(rank, step)
        local, losses = self._locals[rank], []
        for layer in local.layers:
            local.begun(layer)
        for turn in range(1, local.count + 1):
            losses.append(self._pass(rank, local.number(step, turn)))
            for layer in local.layers:
                local.update(layer, step, turn)
        for layer in local.layers:
            local.difference(layer)
        return fmean(losses)

    def _pass(self, rank: int, number: int) -> float:
        train = self._job.train
        images, labels = self._batches[rank].batch(number)
        context = StepContext(training=True, seed=train.seed, step=number, first_sample=rank * train.batch)
        return self._model.train(images, labels, context, StepHooks())


class First:
    """The first so many of some examples."""

    def __init__(self, examples: Any, count: int) -> None:
        self._count = count
        self.read, self.targets = examples.read, examples.targets

    def __len__(self) -> int:
        return self._count


def train_on_first(job: Job, images: int, path: Path | None = None) -> dict[str, Any]:
    """Train on the first so many images of a job's data, test on 2,000, and tell what `WorkersInTurns.run` does.

    The data set's files are in the folder `path`, if they are not where the job looks.
    """
    data = job.data if path is None else job.data.model_copy(update={"path": path})
    whole = load_dataset(data, job.model.name)
    tested = min(_TESTED, len(whole.test))
    dataset = replace(whole, train=First(whole.train, images), test=First(whole.test, tested))
    model = build_model(job.model.name, dataset.input_shape, dataset.outputs)
    model.use_threads(1)
    count, batch, seed = job.cluster.workers, job.train.batch, job.train.seed
    in_step = job.exchange.local_steps
    batches = [
        Batches(dataset, batch=batch, workers=count, rank=rank, seed=seed, in_step=in_step) for rank in range(count)
    ]
    return WorkersInTurns(job, model, batches).run(dataset)
