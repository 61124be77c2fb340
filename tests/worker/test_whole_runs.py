"""Whole runs end where others end: with the same bits where only the way differs, near the values of one worker."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load
from support.whole_run import run_here
from support.worker import Values

# Runs that several tests compare are made once, in one process.
pytestmark = pytest.mark.xdist_group("whole runs")

# With a larger rate a rounding difference that turns one ReLU or maximum would grow past the bound.
RATE = "optimizer.learning_rate=0.003"
SHORT = ("train.steps=24", "train.batch=8")
SMALL_FRAMES = ("exchange.transport=tcp", "exchange.frame_bytes=8192", "exchange.window_frames=2")
RING = "exchange.kind=ring"


@dataclass(frozen=True)
class Ended:
    """The results of a run, and the file of its model."""

    results: dict[str, Any]
    saved: bytes

    @property
    def sha256(self) -> str:
        sha256: str = self.results["parameters_sha256"]
        return sha256

    @property
    def parameters(self) -> dict[str, Values]:
        return load(self.saved)

    @property
    def model(self) -> bytes:
        """All that is saved but what it says of its run, which names its settings."""
        length = int.from_bytes(self.saved[:8], "little")
        header = json.loads(self.saved[8 : 8 + length])
        del header["__metadata__"]
        return json.dumps(header).encode() + self.saved[8 + length :]

    def assert_near(self, other: Ended) -> None:
        """That it ended where `other` did, but for what rounding makes of other orders of sums."""
        assert abs(self.results["test_accuracy"] - other.results["test_accuracy"]) < 0.005
        assert self.parameters.keys() == other.parameters.keys()
        for name, values in other.parameters.items():
            distance = np.linalg.norm(self.parameters[name] - values) / np.linalg.norm(values)
            assert distance < 1e-5, (name, distance)


@cache
def run(*assignments: str) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        results = run_here(*assignments, model=path)
        return Ended(results, path.read_bytes())


THROUGH_SERVERS = [
    (),
    ("cluster.servers=1",),
    ("cluster.servers=3", "exchange.plan=per-layer", *SMALL_FRAMES),
    ("exchange.plan=single", *SMALL_FRAMES),
    ("exchange.plan=bucket:20kB", "exchange.transport=grpc"),
]


@pytest.mark.parametrize("way", THROUGH_SERVERS, ids=" ".join)
def test_neither_the_number_of_servers_nor_plan_nor_transport_changes_a_bit(way: tuple[str, ...]) -> None:
    assert run(RATE, *SHORT, *way).sha256 == run(RATE, *SHORT, *THROUGH_SERVERS[2]).sha256


AROUND = [
    (),
    ("exchange.plan=per-layer",),
    ("exchange.plan=single", "exchange.transport=grpc"),
    ("exchange.plan=bucket:20kB", "exchange.transport=tcp"),
]


@pytest.mark.parametrize("way", AROUND, ids=" ".join)
def test_rings_end_with_the_same_bits_whatever_the_plan_and_the_path(way: tuple[str, ...]) -> None:
    ring = run(RATE, *SHORT, RING, *way)
    assert ring.sha256 == run(RATE, *SHORT, RING, *AROUND[1]).sha256
    assert ring.results["servers"] == 0
    # Every rank sends 2 (P - 1) / P of the gradient in every step.
    moved = 2 * 2 * sum(layer["elements"] for layer in ring.results["profile"]["layers"]) * 4
    # In shared memory nothing else moves; elsewhere there are headers.
    within = 0.0 if ring.results["path"] == "same-host" else 0.01
    assert ring.results["bytes_sent_per_step"] == pytest.approx(moved, rel=within, abs=0)
    assert ring.results["bytes_received_per_step"] == pytest.approx(moved, rel=within, abs=0)
    assert ring.results["path"] == "same-host" or len(way) == 2


def test_servers_and_a_ring_end_where_one_worker_ends() -> None:
    steps = "train.steps=60"
    alone = run(RATE, steps, "cluster.servers=1", "cluster.workers=1", "train.batch=96")
    for way, kind in (((), "server"), ((RING,), "ring")):
        ended = run(RATE, steps, *way)
        assert ended.results["exchange"] == kind
        ended.assert_near(alone)


def test_compressed_runs_end_with_the_same_bits_around_a_ring_and_through_any_number_of_servers() -> None:
    common = ("compression.method=dlgs", "compression.density=0.05", "exchange.plan=bucket:20kB", *SHORT)
    ends = [run_here(*common, *way) for way in ((RING,), ("cluster.servers=1",), ("cluster.servers=2",))]
    assert len({results["parameters_sha256"] for results in ends}) == 1


ADAM = ("optimizer.name=adam", "optimizer.learning_rate=0.002")


@pytest.mark.parametrize("exchange", ["server", "ring"])
def test_every_stage_of_zero_ends_with_the_same_model(exchange: str) -> None:
    """With tests, recomputing and saving, for which worker 0 reads what it does not hold."""
    common = (f"exchange.kind={exchange}", "exchange.plan=per-layer", "exchange.bucket_bytes=40000", *ADAM)
    stages = [(f"exchange.zero={zero}",) for zero in (0, 1, 2)] + [("exchange.zero=3", "train.recompute=memory")]
    runs = [run(*common, *SHORT, *stage) for stage in stages]
    assert len({ended.model for ended in runs}) == 1
    assert len({ended.sha256 for ended in runs}) == 1
    assert len({ended.results["test_accuracy"] for ended in runs}) == 1
    moved = [ended.results["bytes_sent_per_step"] + ended.results["bytes_received_per_step"] for ended in runs]
    assert moved[:3] == pytest.approx([moved[0]] * 3, rel=0.01)
    # Two of four layers, 87 % of the parameters, fit into what is held anyway, and stay from forward to backward.
    assert 1.0 < moved[3] / moved[0] < 1.07


@pytest.mark.parametrize("exchange", ["server", "ring"])
def test_16_bit_runs_end_alike_whatever_the_stage_and_skip_what_overflows(exchange: str) -> None:
    common = (f"exchange.kind={exchange}", "train.steps=40", "train.loss_scale=16777216", "train.precision=fp16")
    second, third = (run(*common, f"exchange.zero={zero}") for zero in (2, 3))
    assert second.model == third.model
    assert second.results["precision"] == "fp16"
    assert 0 < second.results["skipped_steps"] < 20
    assert third.results["skipped_steps"] == second.results["skipped_steps"]
    assert second.results["final_loss"] < 1.8


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_trains_with_batch_norm_and_augmentation(optimizer: str) -> None:
    small = ("data.name=synthetic:3x16x16", "data.augment=flip", "model.name=resnet20", "train.batch=8")
    results = run_here(*small, "train.steps=3", f"optimizer.name={optimizer}")
    assert np.isfinite(results["final_loss"])


def test_the_plan_is_computed_from_what_was_measured() -> None:
    """It covers every layer once."""
    results = run_here("compression.method=dlgs", *SHORT, "train.steps=40", "exchange.replan_every=10")
    assert results["predicted_seconds_per_step"] > 0
    layers = [layer["name"] for layer in results["profile"]["layers"]]
    covered = [layer for first, last in results["group_layers"] for layer in range(first, last + 1)]
    assert covered == list(range(len(layers)))
    assert results["profile"]["forward_seconds"] > 0
    assert results["profile"]["workers"] == 3
