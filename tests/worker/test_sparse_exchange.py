"""Sparse exchanges over real gRPC against a simulation in plain NumPy; replicas are equal to the last bit."""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import Cluster, Member, Values, initial_parameters, layout_of, make_job

from taihu.errors import TaihuError
from taihu.job import Job
from taihu.layout import Layout

SIZES = (300, 7, 1, 120, 64)
STEPS = 7
RATE = 0.1


def gradient(rank: int, step: int, elements: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(elements, dtype=np.float32)


def sparse_job(servers: int, workers: int, optimizer: dict[str, object], **compression: object) -> Job:
    plan = "single" if compression.get("method") == "topk" else "bucket:1kB"
    return make_job(
        servers,
        workers,
        exchange={"plan": plan},
        compression={"density": 0.1, "refresh_every": 3, **compression},
        optimizer={"learning_rate": RATE, **optimizer},
    )


@dataclass
class Observed:
    """Per step, the parameters of every worker, and how many bytes went up and down."""

    parameters: list[dict[int, Values]] = field(default_factory=lambda: [{} for _ in range(STEPS)])
    bytes_up: int = 0
    bytes_down: int = 0


def observe(job: Job, layout: Layout) -> Observed:
    observed = Observed()
    lock = threading.Lock()

    def work(member: Member) -> None:
        for step in range(1, STEPS + 1):
            parameters = member.step(step, gradient(member.rank, step, layout.elements))
            with lock:
                observed.parameters[step - 1][member.rank] = parameters
        totals = member.exchange.totals()
        with lock:
            observed.bytes_up += totals.sent_bytes
            observed.bytes_down += totals.received_bytes

    with Cluster(job) as cluster:
        cluster.run(layout, work)
    return observed


def units_of(job: Job, layout: Layout) -> list[tuple[int, int]]:
    """The ranges that share a threshold, from the words of the methods."""
    offsets = layout.offsets
    layers = list(itertools.pairwise(offsets))
    if job.compression.method == "topk":
        return [(0, layout.elements)]
    if job.compression.method == "lags":
        return layers
    units: list[tuple[int, int]] = []
    start = 0
    for _, stop in layers:
        if (stop - start) * 4 >= 1000 or stop == layout.elements:
            units.append((start, stop))
            start = stop
    return units


class Selector:
    """Methods 1.1 over some ranges, one after the other, in plain NumPy."""

    def __init__(self, elements: int, units: list[tuple[int, int]], density: float, refresh: int) -> None:
        self.residual: NDArray[np.float64] = np.zeros(elements)
        self.units = units
        self.density = density
        self.refresh = refresh
        self.thresholds: dict[int, float] = {}
        self.ages: dict[int, int] = {}

    def select(self, addition: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is sent, zero elsewhere."""
        sent = np.zeros_like(self.residual)
        self.residual += addition
        for index, (start, stop) in enumerate(self.units):
            owed = self.residual[start:stop]
            k = max(1, math.ceil(self.density * (stop - start)))
            due = index not in self.ages or self.ages[index] + 1 >= self.refresh
            hits = 0 if due else int((np.abs(owed) >= self.thresholds[index]).sum())
            if due or hits < k - k // 4 or hits > k + max(1, k // 4):
                self.thresholds[index], self.ages[index] = float(np.sort(np.abs(owed))[-k]), 0
            else:
                self.ages[index] += 1
            chosen = (np.abs(owed) >= self.thresholds[index]) & (owed != 0)
            sent[start:stop][chosen] = owed[chosen]
            owed[chosen] = 0.0
        return sent


def simulate(job: Job, layout: Layout, frames: list[tuple[int, int]] | None = None) -> list[NDArray[np.float64]]:
    """The parameters after every step, in float64; `frames` are the ranges that DoubleSqueeze selects from."""
    refresh = job.compression.refresh_every if job.compression.method == "dlgs" else 1
    density, momentum = job.compression.density, job.optimizer.momentum
    workers = job.cluster.workers
    selectors = [Selector(layout.elements, units_of(job, layout), density, refresh) for _ in range(workers)]
    velocities = [np.zeros(layout.elements) for _ in range(workers)]
    down = None if frames is None else Selector(layout.elements, frames, density, refresh)
    server_velocity = np.zeros(layout.elements)
    parameters = initial_parameters(layout).astype(np.float64)
    history = []
    for step in range(1, STEPS + 1):
        total = np.zeros(layout.elements)
        for rank, selector in enumerate(selectors):
            given = gradient(rank, step, layout.elements).astype(np.float64)
            if job.momentum_on_workers:
                velocities[rank] = momentum * velocities[rank] + given + job.optimizer.weight_decay * parameters
                given = velocities[rank]
            sent = selector.select(given)
            if job.momentum_on_workers and job.compression.factor_masking:
                velocities[rank][sent != 0] = 0.0
            total += sent
        if job.momentum_on_workers:
            change = total if down is None else down.select(total)
        else:
            server_velocity = momentum * server_velocity + total / workers
            change = server_velocity * workers
        parameters = parameters - RATE * change / workers
        history.append(parameters)
    return history


def check(observed: Observed, expected: list[NDArray[np.float64]]) -> None:
    for step, (replicas, oracle) in enumerate(zip(observed.parameters, expected, strict=True), 1):
        digests = {hashlib.sha256(values.tobytes()).hexdigest() for values in replicas.values()}
        assert len(digests) == 1, f"replicas differ after step {step}"
        np.testing.assert_allclose(replicas[0], oracle, rtol=2e-5, atol=2e-5, err_msg=f"step {step}")


@pytest.mark.parametrize("method", ["topk", "lags", "dlgs"])
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 3), (3, 2)])
def test_exact_pull_follows_the_simulation(method: str, servers: int, workers: int) -> None:
    layout = layout_of(*SIZES)
    job = sparse_job(servers, workers, {"momentum": 0.5, "weight_decay": 0.01}, method=method)
    assert job.downlink == "exact"
    check(observe(job, layout), simulate(job, layout))


def test_factor_masking_stops_the_momentum_of_what_was_sent() -> None:
    layout = layout_of(*SIZES)
    job = sparse_job(1, 2, {"momentum": 0.9}, method="dlgs", factor_masking=True)
    check(observe(job, layout), simulate(job, layout))


@pytest.mark.parametrize("servers", [1, 2])
def test_dense_pull_leaves_momentum_to_the_servers(servers: int) -> None:
    layout = layout_of(*SIZES)
    job = sparse_job(servers, 3, {"momentum": 0.5}, method="dlgs", downlink="dense")
    check(observe(job, layout), simulate(job, layout))


def test_double_squeeze_holds_back_on_the_server_what_it_does_not_send() -> None:
    layout = layout_of(*SIZES)
    job = sparse_job(1, 3, {"momentum": 0.5}, method="dlgs", downlink="doublesqueeze")
    check(observe(job, layout), simulate(job, layout, frames=units_of(job, layout)))


@pytest.mark.parametrize("downlink", ["exact", "doublesqueeze", "dense"])
@pytest.mark.parametrize("value_type", ["fp16", "bf16"])
def test_replicas_stay_equal_with_rounded_values(downlink: str, value_type: str) -> None:
    layout = layout_of(*SIZES)
    job = sparse_job(2, 3, {}, method="dlgs", downlink=downlink, value_type=value_type)
    for replicas in observe(job, layout).parameters:
        assert len({values.tobytes() for values in replicas.values()}) == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_everything_kept_is_the_dense_exchange(momentum: float) -> None:
    """At density 1 nothing is held back: the same numbers as without compression, up to rounding."""
    layout = layout_of(*SIZES)
    optimizer: dict[str, object] = {"momentum": momentum, "weight_decay": 0.01}
    sparse = observe(sparse_job(2, 2, optimizer, method="dlgs", density=1.0, refresh_every=1), layout)
    dense = observe(sparse_job(2, 2, optimizer, method="none"), layout)
    for some, every in zip(sparse.parameters, dense.parameters, strict=True):
        np.testing.assert_allclose(some[0], every[0], rtol=1e-5, atol=1e-6)


def test_bytes_fall_with_the_density() -> None:
    layout = layout_of(200_000, 50_000)
    dense = observe(sparse_job(1, 3, {}, method="none"), layout)
    sparse = observe(sparse_job(1, 3, {}, method="dlgs", density=0.01), layout)
    assert sparse.bytes_up + sparse.bytes_down < (dense.bytes_up + dense.bytes_down) / 20
    squeezed = observe(sparse_job(1, 3, {}, method="dlgs", density=0.01, downlink="doublesqueeze"), layout)
    assert squeezed.bytes_down < sparse.bytes_down / 1.8


def test_gradients_that_are_not_finite_name_the_worker_and_the_layers() -> None:
    layout = layout_of(*SIZES)

    def work(member: Member) -> None:
        bad = gradient(member.rank, 1, layout.elements)
        bad[5] = np.nan
        member.step(1, bad)

    with (
        pytest.raises(
            TaihuError, match=r"worker 0 pushed 1 gradients that are not finite in layers layer0 to layer0"
        ),
        Cluster(sparse_job(1, 1, {}, method="dlgs")) as cluster,
    ):
        cluster.run(layout, work)
