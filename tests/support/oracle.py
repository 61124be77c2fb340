"""The result that an exchange must come to, in NumPy and float64: the words of the papers, nothing of the code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from support.worker import Values, initial_parameters
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.settings import OptimizerSettings

__all__ = ["expected_parameters", "group_ranges", "rounded"]

Exact = NDArray[np.float64]
Ranges = Sequence[tuple[int, int]]


def expected_parameters(
    job: Job, layout: Layout, gradients: Callable[[int, int], Values], strategies: Sequence[str]
) -> list[Exact]:
    """The parameters that workers see after each step; `strategies[step - 1]` merges the layers of a step."""
    if job.compression.method.key == "none":
        return _dense(job, layout, gradients, len(strategies))
    return _sparse(job, layout, gradients, [group_ranges(layout, strategy) for strategy in strategies])


def rounded(values: Exact, precision: str) -> Exact:
    """To the nearest value of 16 bits: by NumPy's own type, or by the upper half of the fp32's bits."""
    if precision == "fp32":
        return values
    if precision == "fp16":
        return values.astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def group_ranges(layout: Layout, strategy: str) -> list[tuple[int, int]]:
    """`per-layer`, `single`, or `bucket:SIZE` with a size in kB: layers merge until they have so many bytes."""
    layers = list(itertools.pairwise(layout.offsets))
    least = {"per-layer": 0.0, "single": math.inf}.get(strategy)
    if least is None:
        least = float(strategy.removeprefix("bucket:").removesuffix("kB")) * 1000
    ranges: list[tuple[int, int]] = []
    start = 0
    for _, stop in layers:
        if (stop - start) * 4 >= least or stop == layout.elements:
            ranges.append((start, stop))
            start = stop
    return ranges


class _Master:
    """Parameters and the state of SGD with momentum, or of Adam (Kingma & Ba 2015, algorithm 1)."""

    def __init__(self, layout: Layout, optimizer: OptimizerSettings) -> None:
        self.parameters = initial_parameters(layout).astype(np.float64)
        self._optimizer = optimizer
        self._first, self._second = np.zeros(layout.elements), np.zeros(layout.elements)

    def update(self, mean: Exact, step: int) -> None:
        optimizer = self._optimizer
        if optimizer.clip_norm is not None:
            assert optimizer.clip == "whole"
            mean = mean * min(1.0, optimizer.clip_norm / float(np.linalg.norm(mean)))
        if optimizer.name.key == "adam":
            beta1 = optimizer.beta1
            self._first = beta1 * self._first + (1 - beta1) * mean
            self._second = 0.999 * self._second + 0.001 * mean**2
            root = np.sqrt(self._second / (1 - 0.999**step)) + 1e-8
            self.parameters = self.parameters - rate_of(optimizer, step) * self._first / (1 - beta1**step) / root
            return
        assert optimizer.name.key == "sgd"
        self._first = optimizer.momentum * self._first + mean + optimizer.weight_decay * self.parameters
        self.parameters = self.parameters - rate_of(optimizer, step) * self._first


def rate_of(optimizer: OptimizerSettings, step: int) -> float:
    """The learning rate of a step: a constant one behind a linear warm-up."""
    assert optimizer.schedule == "constant"
    assert not optimizer.warmup_epochs
    return optimizer.learning_rate * (min(1.0, step / optimizer.warmup_steps) if optimizer.warmup_steps else 1.0)


def _dense(job: Job, layout: Layout, gradients: Callable[[int, int], Values], steps: int) -> list[Exact]:
    """Mixed precision: Micikevicius et al. 2018; a step that overflows is skipped by all, and halves the scale."""
    master, history = _Master(layout, job.optimizer), []
    precision, workers = job.train.precision, job.cluster.workers
    scale = job.train.loss_scale if precision == "fp16" else 1.0
    largest = np.inf
    if precision == "fp16":
        # A ring sums as it goes, in 16 bits.
        largest = 65504.0 / (workers if not job.servers else 1)
    for step in range(1, steps + 1):
        scaled = [gradients(rank, step).astype(np.float64) * scale for rank in range(workers)]
        if precision == "fp16" and not all((np.abs(each) <= largest).all() for each in scaled):
            scale /= 2
        else:
            pushed = [rounded(each, precision) for each in scaled]
            master.update(np.mean(pushed, axis=0) / scale, step)
        history.append(rounded(master.parameters, precision))
    return history


def nearest_multiples(values: Exact, bits: int) -> Exact:
    """Of the least step of 8 significant bits whose largest multiple of so many bits is no less than all values."""
    most = 2 ** (bits - 1) - 1
    largest = float(np.abs(values).max(initial=0.0))
    if not largest:
        return values
    unit = 2.0 ** (math.frexp(largest / most)[1] - 8)
    step = math.ceil(largest / most / unit) * unit
    # Of halves either neighbour is nearest: this is the one that a product finds.
    multiples: Exact = np.rint(values * (1.0 / step)) * step
    return multiples


def _rounded_down(job: Job, layout: Layout, total: Exact, pushed: NDArray[np.bool_], left: Exact) -> Exact:
    """The sums in few bits where anybody pushed something; every server's part of a layer has a step of its own."""
    bits = int(job.compression.downlink_value_type.removeprefix("int"))
    sent = np.zeros_like(total)
    for first, stop in group_ranges(layout, "per-layer"):
        for server in range(job.servers):
            low, high = ((stop - first) * (server + each) // job.servers for each in (0, 1))
            own = np.flatnonzero(pushed[first + low : first + high]) + first + low
            owed = left[own] + total[own]
            sent[own] = nearest_multiples(owed, bits)
            left[own] = owed - sent[own]
    return sent


class _Selector:
    """Sparsification with error feedback, and thresholds that are exact every `refresh` steps and reused between."""

    def __init__(self, elements: int, density: float, refresh: int, bits: int = 0, slack: float | str = 0.25) -> None:
        self._bits = bits
        self._slack = slack
        self._residual = np.zeros(elements)
        self._density = density
        self._refresh = refresh
        self._thresholds: dict[tuple[int, int], tuple[float, int]] = {}

    def select(self, addition: Exact, ranges: Ranges, weight: float = 1.0) -> Exact:
        """The part that is sent of what is owed, zero elsewhere; every range has its threshold.

        What was held back counts by its `weight`.
        """
        sent = np.zeros_like(self._residual)
        self._residual *= weight
        self._residual += addition
        # Other ranges make their thresholds anew.
        self._thresholds = {key: value for key, value in self._thresholds.items() if key in ranges}
        for key in ranges:
            owed = self._residual[slice(*key)]
            k = max(1, math.ceil(self._density * len(owed)))
            threshold, age = self._thresholds.get(key, (math.inf, self._refresh))
            hits = int((np.abs(owed) >= threshold).sum())
            least, most = 0.0, math.inf
            if isinstance(self._slack, float):
                least, most = k - math.floor(self._slack * k), k + max(1, math.floor(self._slack * k))
            if age + 1 >= self._refresh or not least <= hits <= most:
                threshold, age = float(np.sort(np.abs(owed))[-k]), -1
            self._thresholds[key] = threshold, age + 1
            chosen = (np.abs(owed) >= threshold) & (owed != 0)
            sent[slice(*key)][chosen] = nearest_multiples(owed[chosen], self._bits) if self._bits else owed[chosen]
            owed[chosen] -= sent[slice(*key)][chosen]
        return sent


def _sparse(
    job: Job, layout: Layout, gradients: Callable[[int, int], Values], groups: Sequence[Ranges]
) -> list[Exact]:
    """Momentum correction (Lin et al. 2018) where the workers apply momentum; DoubleSqueeze (Tang et al. 2019).

    Momentum that nobody applies is none; the rate is half of 1 / (1 - momentum) times as high, at least once.
    """
    compression, optimizer, workers = job.compression, job.optimizer, job.cluster.workers
    is_left = compression.momentum_at == "auto" and compression.share <= 0.05 and not compression.factor_masking
    if is_left or compression.momentum_at == "none":
        rate = optimizer.learning_rate * max(1.0, 0.5 / (1 - optimizer.momentum))
        newest = {"beta1": 0.0} if optimizer.name.key == "adam" else {"momentum": 0.0, "learning_rate": rate}
        optimizer = optimizer.model_copy(update=newest)
    refresh = compression.refresh_every if compression.method.key == "dlgs" else 1
    bits = int(compression.value_type.removeprefix("int")) if compression.value_type.startswith("int") else 0
    slack = compression.threshold_slack
    selectors = [_Selector(layout.elements, compression.share, refresh, bits, slack) for _ in range(workers)]
    down = _Selector(layout.elements, compression.density, refresh, slack=slack)
    left = np.zeros(layout.elements)
    velocities = [np.zeros(layout.elements) for _ in range(workers)]
    master, history = _Master(layout, optimizer), []
    layers = group_ranges(layout, "per-layer")
    units = {"topk": [(0, layout.elements)], "lags": layers, "quantized": layers}
    if compression.threshold == "layer":
        units["dlgs"] = layers
    usual = compression.momentum_at in {"auto", "none"} and job.downlink != "doublesqueeze"
    lowers = {"auto": usual, "no": True, "yes": False}[compression.held_back_rises]
    for step, ranges in enumerate(groups, 1):
        rises = lowers and step > 1
        weight = min(1.0, rate_of(optimizer, step - 1) / rate_of(optimizer, step)) if rises else 1.0
        total, pushed = np.zeros(layout.elements), np.zeros(layout.elements, dtype=bool)
        for rank in range(workers):
            given = gradients(rank, step).astype(np.float64)
            if job.momentum_on_workers:
                given += optimizer.momentum * velocities[rank] + optimizer.weight_decay * master.parameters
                velocities[rank] = given
            sent = selectors[rank].select(given, units.get(compression.method.key, ranges), weight)
            if job.momentum_on_workers and compression.factor_masking:
                velocities[rank] = np.where(sent != 0, 0.0, given)
            total += sent
            # Zeros are sent, too, where all values are.
            pushed |= (sent != 0) | (compression.method.key == "quantized")
        if compression.downlink_value_type != "fp32":
            total = _rounded_down(job, layout, total, pushed, left)
        if not job.momentum_on_workers:
            master.update(total / workers, step)
        else:
            if job.downlink == "doublesqueeze":
                total = down.select(total, layers if units.get(compression.method.key) == layers else ranges)
            master.parameters = master.parameters - rate_of(optimizer, step) * total / workers
        history.append(master.parameters)
    return history
