"""Saved models against the safetensors library, also where the model is never in memory all at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from taihu.errors import ModelError, RunError
from worker.engine import Model, build_model
from worker.saving import SavedModel, load_model, save_model

SAVED = SavedModel("resnet20", (32, 32, 3), 10, "synthetic:3x32x32", 7)


@pytest.fixture
def model() -> Model:
    """Bound, with parameters and running moments that all differ."""
    made = build_model(SAVED.model, SAVED.input_shape, SAVED.classes)
    arena = np.arange(made.layout.elements, dtype=np.float32)
    made.bind(arena, np.zeros_like(arena))
    for index, buffer in enumerate(made.buffers().values()):
        buffer[...] = np.arange(buffer.size) + 1000 * index
    return made


def expected(model: Model) -> dict[str, bytes]:
    buffers = {f"buffers/{name}": values for name, values in model.buffers().items()}
    return {name: values.tobytes() for name, values in {**model.parameters_by_name(), **buffers}.items()}


def test_the_library_reads_every_tensor(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "made" / "model.safetensors"
    save_model(path, model, SAVED)
    tensors = load_file(path)
    assert {name: values.tobytes() for name, values in tensors.items()} == expected(model)
    shapes = {name: values.shape for name, values in model.parameters_by_name().items()}
    assert {name: tensors[name].shape for name in shapes} == shapes
    with safe_open(path, framework="np") as file:
        assert set(file.metadata()) == {"taihu"}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_is_saved_is_loaded(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "a", model, SAVED)
    loaded = load_model(tmp_path / "a")
    assert loaded.saved == SAVED
    assert expected(loaded.model) == expected(model)


def test_one_layer_at_a_time_need_be_there(model: Model, tmp_path: Path) -> None:
    save_model(tmp_path / "whole", model, SAVED)
    values = {index: list(layer.parameters.values()) for index, layer in enumerate(model.parameter_layers)}
    kept = {index: [each.copy() for each in own] for index, own in values.items()}

    def read_layer(index: int) -> None:
        for layer, own in values.items():
            for tensor, copy in zip(own, kept[layer], strict=True):
                tensor[...] = copy if layer == index else np.nan

    save_model(tmp_path / "parts", model, SAVED, read_layer)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_save_that_fails_leaves_what_was_there(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")

    def read_layer(index: int) -> None:
        if index == 3:
            raise RunError("server 1 is gone")

    with pytest.raises(RunError, match="server 1 is gone"):
        save_model(path, model, SAVED, read_layer)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "model.safetensors"
    with pytest.raises(ModelError, match=f"cannot save {path}: "):
        save_model(path, model, SAVED)
