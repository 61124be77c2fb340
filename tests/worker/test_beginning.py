"""Training on from a saved model: what layers begin with, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from taihu.core.base.errors import ModelError
from taihu.core.job import Job
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import BatchNorm, Conv2d, Flatten, Layer, Linear, Model, ReLU, Sequential
from taihu.worker.fc.hybrid import HybridModel
from taihu.worker.saved.beginning import begin_from, beginning_of
from taihu.worker.saved.reading import open_model
from taihu.worker.saved.writing import describe_model, save_model


def made(classes: int, *, hidden: int = 6, seed: int | None = None) -> Model:
    """A model; bound and initialized where there is a seed."""
    layers: list[Layer] = [Conv2d(3, 3), BatchNorm(), ReLU(), Flatten(), Linear(hidden), ReLU(), Linear(classes)]
    model = Model(Sequential(layers), (4, 4, 1), classes)
    if seed is not None:
        arena = np.zeros(model.layout.elements, np.float32)
        model.bind(arena, np.zeros_like(arena))
        model.initialize(seed)
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A saved model of 5 classes."""
    model = made(5, seed=7)
    for buffer in model.buffers().values():
        buffer[...] += 3
    job = Job.model_validate({"data": {"name": "synthetic:1x4x4:classes=5:samples=8"}})
    save_model(tmp_path / "begin", model, describe_model(job, load_dataset(job.data), model, 1))
    return tmp_path / "begin"


def values(model: Model) -> dict[str, bytes]:
    buffers = {f"buffers/{name}": each for name, each in model.buffers().items()}
    return {name: each.tobytes() for name, each in {**model.parameters_by_name(), **buffers}.items()}


def test_all_layers_begin_as_the_file_says(path: Path) -> None:
    model = made(5, seed=1)
    with open_model(path) as file:
        begin_from(file, model, ())
        model.initialize(1)
    assert values(model) == {name: each.tobytes() for name, each in load_file(path).items()}


def test_layers_that_are_skipped_begin_anew(path: Path) -> None:
    model = made(9, seed=1)
    anew = values(model)
    with open_model(path) as file:
        begin_from(file, model, ("fc2",))
        model.initialize(1)
    saved = {name: each.tobytes() for name, each in load_file(path).items()}
    assert values(model) == {name: anew[name] if name.startswith("fc2/") else saved[name] for name in anew}


def test_shards_begin_with_their_columns(path: Path) -> None:
    weight = load_file(path)["fc1/weight"]
    for rank, own in enumerate((slice(0, 3), slice(3, 6))):
        model = made(5)
        with open_model(path) as file:
            begin_from(file, model, ())
            hybrid = HybridModel(model, ["fc1"], rank=rank, size=2)
            arena = np.zeros(hybrid.layout.elements, np.float32)
            hybrid.bind(arena, np.zeros_like(arena))
            hybrid.initialize_shards(1)
        assert np.array_equal(hybrid.shards[: weight[:, own].size].reshape(-1, 3), weight[:, own])


@pytest.mark.parametrize(
    ("model", "skip", "message"),
    [
        (lambda: made(9), (), r"fc2/weight of shape \(6, 9\) has the shape \(6, 5\) there; begin it anew with "),
        (lambda: made(9, hidden=7), ("fc2",), r"fc1/weight of shape \(12, 7\) has the shape \(12, 6\) there"),
        (lambda: made(5), ("fc3",), r"model.init_skip: the model has no layer fc3; it has conv1, norm1, fc1, fc2"),
        (
            lambda: Model(Sequential([Flatten(), *[Linear(5) for _ in range(3)]]), (4, 4, 1), 5),
            ("fc1", "fc2"),
            r"fc3/weight of shape \(5, 5\) is not in the file; .* model.init_skip = \['fc3'\]",
        ),
    ],
)
def test_what_does_not_fit_is_named(path: Path, model: object, skip: tuple[str, ...], message: str) -> None:
    assert callable(model)
    with open_model(path) as file, pytest.raises(ModelError, match=message):
        begin_from(file, model(), skip)


def test_running_moments_have_to_be_there(path: Path) -> None:
    with open_model(path) as file:
        metadata = {"taihu": file.saved.to_metadata()}
    tensors = load_file(path)
    del tensors["buffers/norm1/running_mean"]
    save_file(tensors, path, metadata)
    with open_model(path) as file, pytest.raises(ModelError, match="norm1/running_mean is not in the file"):
        begin_from(file, made(5), ())


@pytest.mark.parametrize(("rank", "fc", "opened"), [(0, "data", True), (1, "data", False), (1, "shard", True)])
def test_workers_open_what_they_need(path: Path, rank: int, fc: str, opened: bool) -> None:
    job = Job.model_validate({"model": {"init_from": path}, "exchange": {"fc": fc}})
    with beginning_of(job, rank) as file:
        assert (file is not None) is opened
    with beginning_of(Job(), rank) as file:
        assert file is None
