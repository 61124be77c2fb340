"""Passes of several workers that one process takes (`learning.fc_batch`): parameters end as theirs do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from support.parts_network import MemoryMover, MemoryNetwork

from benchmarks.learning.fc_batch import Cell, InOneProcess, cells, rows_by_pass, table
from taihu.core.optimization import OptimizerShard
from taihu.core.settings import OptimizerSettings
from taihu.worker.engine import Conv2d, Flatten, Linear, Model, ReLU, Sequential, StepContext, StepHooks
from taihu.worker.fc.hybrid import HybridModel
from taihu.worker.fc.passes import Scheme

WORKERS, BATCH, STEPS, CLASSES = 3, 5, 3, 4
OPTIMIZER = OptimizerSettings(learning_rate=0.1, momentum=0.9)


def network() -> Model:
    layers = [Conv2d(2, 3, padding=1), ReLU(), Flatten(), Linear(6), ReLU(), Linear(CLASSES, gain=1.0)]
    return Model(Sequential(layers), (3, 4, 2), CLASSES)


def examples() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((STEPS, WORKERS * BATCH, 3, 4, 2), dtype=np.float32)
    return images, rng.integers(0, CLASSES, (STEPS, WORKERS * BATCH))


def in_one_process(scheme: Scheme) -> dict[str, NDArray[np.float32]]:
    model = network()
    parameters, gradients = np.zeros((2, model.layout.elements), dtype=np.float32)
    model.bind(parameters, gradients)
    model.initialize(1)
    trained = InOneProcess(model, parameters, OPTIMIZER, rows_by_pass(scheme, WORKERS, BATCH))
    for step, (images, labels) in enumerate(zip(*examples(), strict=True)):
        trained.train(images, labels, gradients, step + 1)
    return model.parameters_by_name()


def by_workers(scheme: Scheme, mover: MemoryMover, network_: MemoryNetwork) -> dict[str, NDArray[np.float32]]:
    """The product's own: spread layers of real ranks, updated after every pass; collected on rank 0."""
    hybrid = HybridModel(network(), ("fc1", "fc2"), rank=mover.rank, size=WORKERS)
    own, own_gradients = np.zeros((2, hybrid.layout.elements), dtype=np.float32)
    hybrid.bind(own, own_gradients)
    hybrid.initialize(1)
    hybrid.initialize_shards(1)
    hybrid.attach(mover, OptimizerShard(OPTIMIZER, hybrid.shards), scheme=scheme, update_each_pass=True)
    rest = OptimizerShard(OPTIMIZER, own)
    mine = slice(mover.rank * BATCH, (mover.rank + 1) * BATCH)
    for step, (images, labels) in enumerate(zip(*examples(), strict=True)):
        hybrid.train(images[mine], labels[mine], StepContext(True, 3, step + 1, mine.start), StepHooks())
        for rank in range(WORKERS):
            network_.box(9, mover.rank, rank, step).put(own_gradients.copy())
        total = sum(network_.box(9, rank, mover.rank, step).get(timeout=120) for rank in range(WORKERS))
        rest.update(0, len(own), np.asarray(total, dtype=np.float32), step + 1, scale=1 / WORKERS)
    tensors: dict[str, NDArray[np.float32]] = {}

    def write(model: Model, pieces: Iterator[NDArray[Any]]) -> None:
        values = np.concatenate([piece.reshape(-1) for piece in pieces])
        for layer in model.parameter_layers:
            for spec in layer.tensors:
                tensors[f"{layer.name}/{spec.name}"] = values[: spec.elements].reshape(spec.shape)
                values = values[spec.elements :]

    hybrid.save(mover, write, lambda layer: None)
    return tensors


@pytest.mark.parametrize("scheme", ["gather", "turns", "slices"])
def test_one_process_takes_the_workers_passes(scheme: Scheme) -> None:
    network_ = MemoryNetwork(WORKERS)
    expected = network_.run(lambda mover: by_workers(scheme, mover, network_))[0]
    seen = in_one_process(scheme)
    assert seen.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(seen[name], values, rtol=1e-4, atol=1e-6)


def test_schemes_differ_in_what_they_learn_from_a_step() -> None:
    weights = [in_one_process(scheme)["fc2/weight"] for scheme in get_args(Scheme)]
    assert not np.allclose(weights[0], weights[1], rtol=1e-3)
    assert not np.allclose(weights[1], weights[2], rtol=1e-3)


@pytest.mark.parametrize("scheme", ["gather", "turns", "slices"])
def test_every_example_is_in_one_pass(scheme: Scheme) -> None:
    passes = rows_by_pass(scheme, 4, 6)
    assert len(passes) == (1 if scheme == "gather" else 4)
    assert sorted(np.concatenate(passes).tolist()) == list(range(24))
    if scheme == "turns":
        assert [rows[0] for rows in passes] == [0, 6, 12, 18]
    if scheme == "slices":
        # An equal part of everybody's; six examples are cut into four parts as evenly as can be.
        assert all({row // 6 for row in rows} == {0, 1, 2, 3} for rows in passes)


def test_the_table_compares_the_best_rates() -> None:
    accuracies = {("gather", 1): (0.80, 0.82), ("turns", 2): (0.84, 0.81)}
    rows = [
        {"scheme": scheme, "workers": workers, "fc_batch": 96 // workers, "learning_rate": rate, "seed": seed}
        | {"test_accuracy": accuracy + 0.01 * (seed - 1)}
        for (scheme, workers), both in accuracies.items()
        for rate, accuracy in zip((0.01, 0.03), both, strict=True)
        for seed in (1, 2)
    ]
    lines = table(rows).splitlines()
    assert lines[2] == "| 96 | gather | 1 | 80.50 | 82.50 | - |"
    assert lines[3] == "| 48 | turns | 2 | 84.50 | 81.50 | +2.00 |"


def test_cells_have_one_pass_once() -> None:
    found = list(cells([2, 4], [0.01, 0.03], 3))
    assert len(found) == len(set(found)) == 3 * 2 * 5
    assert {cell.fc_batch for cell in found} == {96, 48, 24}
    assert Cell("turns", 4, 0.01, 1).fc_batch == 24
