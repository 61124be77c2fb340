"""Local steps: a worker's own updates and their difference, by formulas; whole runs, by workers in turns in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.cluster import layout_of
from support.made_checkpoints import make_checkpoint
from support.whole_run import job_from, run_here

from taihu.core.base.errors import CheckpointError, DataError
from taihu.core.checkpoint.files import write_part
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import NOTHING, Part, State
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.checkpoint.resharding import reshard
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.optimizers import OPTIMIZERS
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import StepContext, StepHooks
from taihu.worker.memory.arenas import Arenas
from taihu.worker.training.local_steps import LocalSteps
from taihu.worker.training.objective import model_for

# Runs in one process.
pytestmark = pytest.mark.xdist_group("local steps")

LAYOUT = layout_of(5, 1, 40)


def local_steps(
    name: str, count: int, largest_norm: float | None = None, **settings: Any
) -> tuple[LocalSteps, Arenas]:
    parameters = np.random.default_rng(3).standard_normal(LAYOUT.elements, dtype=np.float32)
    arenas = Arenas(parameters, np.zeros_like(parameters))
    rule = OptimizerSettings(name=OPTIMIZERS[name], learning_rate=0.1, **settings)
    return LocalSteps(LAYOUT, arenas, rule, count, largest_norm), arenas


def run_step(local: LocalSteps, arenas: Arenas, step: int, gradients: np.ndarray[Any, Any]) -> None:
    """A whole step by these gradients, shape (count, elements)."""
    for layer in reversed(local.layers):
        local.begun(layer)
    for turn, gradient in enumerate(gradients, start=1):
        arenas.gradients[:] = gradient
        scale = local.scale()
        for layer in local.layers:
            local.update(layer, step, turn, scale)
    for layer in local.layers:
        local.difference(layer)


@given(count=st.integers(1, 5), steps=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_the_difference_is_that_of_adams_formula(count: int, steps: int, seed: int) -> None:
    local, arenas = local_steps("adam", count)
    rng = np.random.default_rng(seed)
    mean, square, number = np.zeros(LAYOUT.elements), np.zeros(LAYOUT.elements), 0
    for step in range(1, steps + 1):
        common = arenas.parameters.copy()
        gradients = rng.standard_normal((count, LAYOUT.elements)).astype(np.float32)
        moved = common.astype(np.float64)
        for gradient in gradients.astype(np.float64):
            number += 1
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            root = np.sqrt(square / (1 - 0.999**number)) + 1e-8
            moved -= 0.1 * (mean / (1 - 0.9**number)) / root
        run_step(local, arenas, step, gradients)
        # To a few roundings of parameters of this size.
        np.testing.assert_allclose(arenas.gradients, common - moved, rtol=2e-4, atol=1e-5)
        assert arenas.parameters.tobytes() == common.tobytes()
        arenas.parameters[:] -= arenas.gradients


def test_the_rate_follows_the_schedule_by_steps() -> None:
    local, arenas = local_steps("sgd", 3, momentum=0.0, warmup_steps=4)
    for step in range(1, 6):
        gradients = np.ones((3, LAYOUT.elements), dtype=np.float32)
        run_step(local, arenas, step, gradients)
        np.testing.assert_allclose(arenas.gradients, 3 * 0.1 * min(1.0, step / 4), rtol=1e-4)


def test_the_whole_gradient_is_clipped_before_each_update() -> None:
    local, arenas = local_steps("sgd", 2, largest_norm=2.0, momentum=0.0)
    assert local.waits_for_norm
    gradients = np.random.default_rng(5).standard_normal((2, LAYOUT.elements)).astype(np.float32)
    gradients[1] *= 1e-3  # smaller than that: it stays as it is
    run_step(local, arenas, 1, gradients)
    clipped = [gradient * min(1.0, 2.0 / np.linalg.norm(gradient)) for gradient in gradients.astype(np.float64)]
    np.testing.assert_allclose(arenas.gradients, 0.1 * sum(clipped), rtol=1e-4, atol=1e-6)


def kept(folder: Path, *states: dict[str, Any]) -> Checkpoint:
    """A checkpoint with these arrays of workers, of one layout."""
    made = make_checkpoint(folder, LAYOUT, servers=1, step=7)
    store = CheckpointStore(folder)
    place = store.folder_of(7)
    files = {
        f"worker {rank}": write_part(place, Part(f"worker {rank}", 7, State(NOTHING, own)))
        for rank, own in enumerate(states)
    }
    entries = {**made.manifest.files, **Manifest.entries(files)}
    store.commit(made.manifest.model_copy(update={"workers": len(states), "files": entries}))
    return store.open(7)


def test_a_worker_goes_on_with_its_own_state_and_among_others_with_the_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    states = [
        {f"local.{name}": rng.random(LAYOUT.elements, dtype=np.float32) for name in ("exp_avg", "exp_avg_sq")}
        for _ in range(2)
    ]
    checkpoint = kept(tmp_path, *states)
    for rank, state in enumerate(states):
        local, _ = local_steps("adam", 2)
        local.resume(checkpoint, rank, 2)
        assert {name: array.tobytes() for name, array in local.arrays().items()} == {
            name: array.tobytes() for name, array in state.items()
        }
    local, _ = local_steps("adam", 2)
    local.resume(checkpoint, 2, 3)
    for name, array in local.arrays().items():
        np.testing.assert_allclose(array, np.mean([state[name] for state in states], axis=0), rtol=1e-6)
    sgd, _ = local_steps("sgd", 2)
    with pytest.raises(
        CheckpointError, match=r"no momentum of local steps by optimizer 'sgd'; go on with the optimi"
    ):
        sgd.resume(checkpoint, 0, 2)


def test_another_number_of_workers_has_the_mean_in_its_checkpoint(tmp_path: Path) -> None:
    states = [{"local.momentum": np.full(LAYOUT.elements, value, dtype=np.float32)} for value in (1.0, 5.0)]
    checkpoint = kept(tmp_path / "before", *states)
    folder = reshard(checkpoint, tmp_path / "after", servers=1, workers=3)
    after = CheckpointStore(folder.parent).open(7)
    for rank in range(3):
        local, _ = local_steps("sgd", 2)
        local.resume(after, rank, 3)
        assert set(local.arrays()["local.momentum"].tolist()) == {3.0}


SHORT = ("train.steps=6", "train.batch=8", "exchange.local_steps=4", "optimizer.learning_rate=0.003")


def in_turns(job: Job) -> np.ndarray[Any, Any]:
    """The parameters, shape (elements,), with which a dense job ends whose workers take turns here, by SGD."""
    dataset = load_dataset(job.data, job.model.name)
    model = model_for(job, dataset)
    parameters = np.zeros(model.layout.elements, dtype=np.float32)
    gradients = np.zeros_like(parameters)
    model.bind(parameters, gradients)
    model.initialize(job.train.seed)
    count, train, outer = job.exchange.local_steps, job.train, job.exchange
    workers = range(job.cluster.workers)
    batches = [
        Batches(dataset, batch=train.batch, workers=len(workers), rank=rank, seed=train.seed, in_step=count)
        for rank in workers
    ]
    velocities = [np.zeros(len(parameters)) for _ in workers]
    outer_velocity, common = np.zeros(len(parameters)), parameters.astype(np.float64)
    assert train.steps is not None
    for step in range(1, train.steps + 1):
        differences = []
        for rank in workers:
            parameters[:] = common
            for number in range((step - 1) * count + 1, step * count + 1):
                inputs, targets = batches[rank].batch(number)
                context = StepContext(training=True, seed=train.seed, step=number, first_sample=rank * train.batch)
                model.train(inputs, targets, context, StepHooks())
                velocities[rank] = job.optimizer.momentum * velocities[rank] + gradients
                parameters[:] = parameters - job.optimizer.learning_rate * velocities[rank]
            differences.append(common - parameters)
        mean = np.mean(differences, axis=0)
        if outer.outer_momentum:
            outer_velocity = outer.outer_momentum * outer_velocity + mean
            mean = mean + outer.outer_momentum * outer_velocity
        common = common - (outer.outer_learning_rate or 1.0) * mean
    return common


WAYS = {
    "servers": (),
    "ring": ("exchange.kind=ring",),
    "momentum": ("exchange.outer_momentum=0.9", "exchange.outer_learning_rate=0.7"),
}


@pytest.mark.parametrize("way", WAYS)
def test_runs_end_where_workers_in_turns_end(way: str, tmp_path: Path) -> None:
    assignments = (*SHORT, *WAYS[way])
    path = tmp_path / "model.safetensors"
    results = run_here(*assignments, model=path)
    job = job_from(*assignments)
    expected, saved = in_turns(job), load_file(path)
    layers = model_for(job, load_dataset(job.data, job.model.name)).layout.layers
    ended = np.concatenate(
        [saved[f"{layer.name}/{tensor.name}"].ravel() for layer in layers for tensor in layer.tensors]
    )
    assert np.linalg.norm(ended - expected) < 1e-5 * np.linalg.norm(expected)
    # A step has four batches, and bytes of one exchange.
    assert results["steps"] == 6
    assert results["seconds_exchange"]["median"] > 0.0


SELECTED = ("compression.method=dlgs", "compression.density=0.05", "compression.value_type=int4")


def test_compressed_runs_end_with_the_same_bits_through_any_number_of_servers() -> None:
    ends = [run_here(*SHORT, *SELECTED, f"cluster.servers={count}")["parameters_sha256"] for count in (1, 3)]
    assert ends[0] == ends[1]


def test_a_run_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(tmp_path: Path) -> None:
    common = (*SHORT, *SELECTED, "optimizer.name=adamw", "exchange.plan=bucket:20kB")
    whole = run_here(*common)
    run_here(*common, "checkpoint.every_steps=2", "checkpoint.keep=5", f"checkpoint.dir={tmp_path}")
    resumed = run_here(*common, f"checkpoint.resume={tmp_path / 'step-000002'}")
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]


def test_an_epoch_has_as_many_samples_as_before() -> None:
    job = job_from("train.batch=8", "exchange.local_steps=4")
    dataset = load_dataset(job.data, job.model.name)
    one, four = (Batches(dataset, batch=8, workers=2, rank=0, seed=1, in_step=count) for count in (1, 4))
    assert four.steps_per_epoch == one.steps_per_epoch // 4
    seen = np.concatenate([four.batch(number)[1] for number in range(1, 4 * four.steps_per_epoch + 1)])
    again = np.concatenate([one.batch(number)[1] for number in range(1, 4 * four.steps_per_epoch + 1)])
    assert seen.tobytes() == again.tobytes()
    with pytest.raises(
        DataError, match=r"10000 local steps of 2 workers with batch 8 need 160,000 samples, .* is 89"
    ):
        Batches(dataset, batch=8, workers=2, rank=0, seed=1, in_step=10_000)
