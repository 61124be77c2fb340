"""The memory of a worker's steps for batches of any size, against rehearsals and real steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from taihu.core.job import Job, load_job, parse_assignments
from taihu.core.settings import DataSettings
from taihu.worker.data.footprint import kept_bytes
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Model, StepContext, StepHooks, build_model
from taihu.worker.engine.rehearsal import rehearsed_bytes
from taihu.worker.fc.connected import tail_start
from taihu.worker.training.evaluation import samples_at_once
from taihu.worker.training.step_memory import StepMemory

SHAPE = (8, 8, 1)
make = partial(build_model, "small_cnn", SHAPE, 10)


def job_of(*assignments: str) -> Job:
    return load_job(None, parse_assignments(("cluster.threads=1", "train.evaluate=false", *assignments)))


@pytest.mark.parametrize("recompute", ["none", "memory"])
def test_any_batch_takes_what_a_real_step_takes(recompute: str) -> None:
    """Batches of powers of two exactly; for others, and beyond what is rehearsed, within 2 %."""
    memory = StepMemory(job_of(f"train.recompute={recompute}"), make, ())
    for batch in (1, 2, 6, 32, 100, 700):
        model = make()
        if recompute == "memory":
            model.recompute()
        arenas = np.zeros((2, model.layout.elements), np.float32)
        model.bind(*arenas)
        for step in (1, 2):
            context = StepContext(training=True, seed=1, step=step, first_sample=0)
            model.train(np.zeros((batch, *SHAPE), np.float32), np.zeros(batch, np.int64), context, StepHooks())
        held = model.held_bytes + 4 * 10 * batch
        exact = batch & (batch - 1) == 0 and batch <= 256
        assert memory.activation_bytes(batch) == (held if exact else pytest.approx(held, rel=0.02))


def test_larger_batches_take_more() -> None:
    memory = StepMemory(job_of(), make, ())
    sizes = [memory.activation_bytes(batch) for batch in range(1, 600, 7)]
    assert sizes == sorted(sizes)


def test_testing_counts_where_it_takes_more_than_training() -> None:
    tests, trains = (StepMemory(job_of(f"train.evaluate={word}"), make, ()) for word in ("true", "false"))
    assert tests.activation_bytes(2) == rehearsed_bytes(make(), 2, tested=250) + 2 * 40 > trains.activation_bytes(2)
    assert tests.activation_bytes(256) == pytest.approx(trains.activation_bytes(256), rel=0.01)
    assert tests.batch_bytes(2) - trains.batch_bytes(2) == 250 * 256


def test_of_many_activations_no_more_are_tested_at_once_than_trained() -> None:
    large = build_model("resnet50", (64, 64, 3), 10)
    assert samples_at_once(large, 4) == max(4, (32 << 20) // large.activations) < 250
    assert samples_at_once(large, 100) == 100
    assert samples_at_once(large, 400) == 250
    assert samples_at_once(make(), 4) == 250


@pytest.mark.parametrize("recompute", ["none", "memory"])
def test_spread_layers_count_for_all_workers_examples(recompute: str) -> None:
    job = job_of("exchange.fc=shard", "cluster.workers=3", f"train.recompute={recompute}")
    spread = StepMemory(job, make, ("fc1", "fc2")).activation_bytes(4)
    front: Model = make()
    stop = tail_start(front)
    if recompute == "memory":
        front.recompute(stop=stop)
    # Features of 12 examples and their gradient, terms of 3 ranks, own gradients; the columns of both layers.
    wide = 4 * 512 * (12 + 12 + 12 + 4)
    narrow = 4 * (2 * 12 * 22 + 12 * (64 + 64) + 3 * 12 * 22 + 2 * 12 * 4 + 4 * 10)
    assert spread == rehearsed_bytes(front, 4, stop=stop) + wide + narrow + 4 * 10 * 4


def test_examples_in_memory_are_counted_once(tmp_path: Path) -> None:
    x, y = np.zeros((20, 3, 3, 1), np.uint8), np.arange(20) % 4
    np.savez(tmp_path / "some.npz", x_train=x, y_train=y)
    dataset = load_dataset(DataSettings(name=str(tmp_path / "some.npz")))
    # Images, classes, and the rows of both parts; the images are those of both.
    assert kept_bytes(dataset) == x.nbytes + 2 * 8 * 20
    np.save(tmp_path / "x_train.npy", x)
    np.save(tmp_path / "y_train.npy", y)
    mapped = load_dataset(DataSettings(name=f"{tmp_path}/"))
    assert kept_bytes(mapped) <= 2 * 8 * 20
    synthetic = load_dataset(DataSettings(name="synthetic:1x8x8:classes=3:samples=10"))
    assert kept_bytes(synthetic) >= 10 * 64
