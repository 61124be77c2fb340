"""Saved models against the safetensors library, also where the model is never in memory all at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.strategies import CHARACTERS

from taihu.core.base.errors import ModelError, RunError, WriteError
from taihu.core.job import Job
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import (
    CausalAttention,
    Conv2d,
    Embedding,
    Flatten,
    GlobalAvgPool,
    Linear,
    Model,
    ReLU,
    Sequential,
    TiedLinear,
    build_model,
)
from taihu.worker.saved.metadata import SavedModel, parse_metadata
from taihu.worker.saved.reading import StoredModel, load_model
from taihu.worker.saved.writing import bound_pieces, describe_model, save_model

JOB = Job.model_validate({"model": {"name": "resnet20"}, "data": {"name": "synthetic:3x32x32:samples=8"}})
OWN = """
from pathlib import Path
from taihu.worker.engine import Flatten, Linear, Sequential

Path(__file__).with_name("executed").touch()

class Scaled(Linear):
    pass

def build(input_shape, classes):
    return Sequential([Flatten(), Scaled(classes)])

def plain(input_shape, classes):
    return Sequential([Flatten(), Linear(classes)])
"""


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load_dataset(JOB.data)


def filled(made: Model) -> Model:
    """Bound, with parameters and running moments that all differ."""
    arena = np.arange(made.layout.elements, dtype=np.float32)
    made.bind(arena, np.zeros_like(arena))
    for index, buffer in enumerate(made.buffers().values()):
        buffer[...] = np.arange(buffer.size) + 1000 * index
    return made


@pytest.fixture
def model() -> Model:
    return filled(build_model("resnet20", (32, 32, 3), 10))


@pytest.fixture(scope="module")
def said(dataset: Dataset) -> SavedModel:
    return describe_model(JOB, dataset, build_model("resnet20", (32, 32, 3), 10), 7)


def expected(model: Model) -> dict[str, bytes]:
    buffers = {f"buffers/{name}": values for name, values in model.buffers().items()}
    return {name: values.tobytes() for name, values in {**model.parameters_by_name(), **buffers}.items()}


def test_the_library_reads_every_tensor(model: Model, said: SavedModel, tmp_path: Path) -> None:
    path = tmp_path / "made" / "model.safetensors"
    save_model(path, model, said)
    tensors = load_file(path)
    assert {name: values.tobytes() for name, values in tensors.items()} == expected(model)
    shapes = {name: values.shape for name, values in model.parameters_by_name().items()}
    assert {name: tensors[name].shape for name in shapes} == shapes
    with safe_open(path, framework="np") as file:
        assert set(file.metadata()) == {"taihu"}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_is_saved_is_loaded(model: Model, said: SavedModel, tmp_path: Path) -> None:
    save_model(tmp_path / "a", model, said)
    loaded = load_model(tmp_path / "a")
    assert loaded.saved == said
    assert expected(loaded.model) == expected(model)


def test_a_file_says_all_that_prediction_needs(dataset: Dataset, said: SavedModel) -> None:
    assert parse_metadata(said.to_metadata()) == said
    assert (said.input_shape, said.outputs, said.targets, said.steps) == ((32, 32, 3), 10, "classes", 7)
    assert np.array_equal(np.array(said.mean, np.float32), dataset.mean)
    assert np.array_equal(np.array(said.scale, np.float32), dataset.scale)
    assert Job.model_validate(said.job) == JOB


def test_one_layer_at_a_time_need_be_there(model: Model, said: SavedModel, tmp_path: Path) -> None:
    save_model(tmp_path / "whole", model, said)
    values = {index: list(layer.parameters.values()) for index, layer in enumerate(model.parameter_layers)}
    kept = {index: [each.copy() for each in own] for index, own in values.items()}

    def read_layer(index: int) -> None:
        for layer, own in values.items():
            for tensor, copy in zip(own, kept[layer], strict=True):
                tensor[...] = copy if layer == index else np.nan

    save_model(tmp_path / "parts", model, said, bound_pieces(model, read_layer))
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_save_that_fails_leaves_what_was_there(model: Model, said: SavedModel, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"before")

    def read_layer(index: int) -> None:
        if index == 3:
            raise RunError("server 1 is gone")

    with pytest.raises(RunError, match="server 1 is gone"):
        save_model(path, model, said, bound_pieces(model, read_layer))
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(model: Model, said: SavedModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "model.safetensors"
    with pytest.raises(WriteError, match=f"cannot write {path}: "):
        save_model(path, model, said)


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Path]:
    """Save a model that a function in a file of the user's built; returns the model's file."""
    (tmp_path / "mine.py").write_text(OWN)

    def save(function: str) -> Path:
        name = f"{tmp_path / 'mine.py'}:{function}"
        job = Job.model_validate({"model": {"name": name}, "data": {"name": "synthetic:1x2x2:samples=8"}})
        model = filled(build_model(name, (2, 2, 1), 10))
        save_model(tmp_path / "own", model, describe_model(job, load_dataset(job.data), model, 1))
        (tmp_path / "executed").unlink()
        return tmp_path / "own"

    return save


def test_loading_executes_nothing_that_the_file_names(own: Callable[[str], Path], tmp_path: Path) -> None:
    path = own("build")
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(caught.value) == (
        f"{path}: its layers were made by {tmp_path / 'mine.py'}:build, which is not in the file and is not executed "
        "unasked; give --model path/to/file.py:function if you have that code and trust it"
    )
    assert not (tmp_path / "executed").exists()
    loaded = load_model(path, f"{tmp_path / 'mine.py'}:build")
    assert (tmp_path / "executed").exists()
    assert np.array_equal(loaded.parameters, np.arange(50, dtype=np.float32))


def test_built_in_layers_need_no_file(own: Callable[[str], Path], tmp_path: Path) -> None:
    path = own("plain")
    (tmp_path / "mine.py").unlink()
    assert np.array_equal(load_model(path).parameters, np.arange(50, dtype=np.float32))


def rewritten(path: Path, metadata: dict[str, Any] | str, tensors: dict[str, np.ndarray] | None = None) -> Path:
    """`path` with other metadata."""
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    save_file(load_file(path) if tensors is None else tensors, path, {"taihu": text})
    return path


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A file with a small model, and what it says."""
    job = Job.model_validate({"data": {"name": "synthetic:1x2x2:samples=8"}})
    model = filled(Model(Sequential([Flatten(), Linear(4), ReLU(), Linear(10)]), (2, 2, 1), 10))
    said = describe_model(job, load_dataset(job.data), model, 1)
    save_model(tmp_path / "small", model, said)
    return tmp_path / "small", json.loads(said.to_metadata())


def test_a_file_of_the_first_format_is_read(small: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = small
    old = {"input_shape": [2, 2, 1], "classes": 10, "data": "synthetic:1x2x2", "steps": 3}
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ModelError, match="give --model path/to/file"):
        load_model(rewritten(path, {**old, "model": f"{tmp_path / 'mine.py'}:plain"}))
    assert not (tmp_path / "executed").exists()
    zoo = filled(build_model("small_cnn", (8, 8, 1), 10))
    tensors = {name: values.copy() for name, values in zoo.parameters_by_name().items()}
    loaded = load_model(rewritten(path, {**old, "model": "small_cnn", "input_shape": [8, 8, 1]}, tensors))
    assert loaded.parameters.tobytes() == np.arange(zoo.layout.elements, dtype=np.float32).tobytes()
    assert loaded.saved.mean == ()


def _huge(units: int) -> dict[str, Any]:
    linear = {"layer": "Linear", "units": units, "bias": True, "gain": 1.0}
    return {"layer": "Sequential", "layers": [{"layer": "Flatten"}, linear]}


def _bordered(padding: int, stride: int) -> dict[str, Any]:
    """An image whose border is all there is to it, and few windows."""
    convolution = Conv2d(1, 1, stride, padding, bias=False)
    return Sequential([convolution, Flatten(), Linear(10, bias=False)]).definition() or {}


def _padded(layers: int) -> dict[str, Any]:
    pool = {"layer": "AvgPool2d", "kernel": 2, "stride": 1, "padding": 1, "ceil_mode": False}
    wide = {"layer": "PaddedShortcut", "channels": 1 << 24, "stride": 1}
    end = {"layer": "GlobalAvgPool"}
    return {"layer": "Sequential", "layers": [*[pool] * layers, wide, end]}


def _attentive(time: int, weights: str = "embedding1") -> dict[str, Any]:
    """A model of few parameters that compares every place with every other."""
    layers = [Embedding(3, 3), CausalAttention(1), Linear(3), TiedLinear(3, weights)]
    return {
        "definition": Sequential(layers).definition(),
        "input_shape": [time],
        "outputs": 3,
        "mean": [],
        "scale": [],
        "class_names": [],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_shape": [10**9]}, "input_shape.0 Input should be less than or equal to 16777216"),
        ({"input_shape": [10**6, 10**6, 3]}, "expected at most 67108864 values for a sample"),
        ({"input_shape": []}, "input_shape Tuple should have at least 1 item"),
        ({"input_shape": [2, 2, 1, 1]}, "input_shape Tuple should have at most 3 items"),
        ({"input_shape": [2, -2, 1]}, "input_shape.1 Input should be greater than or equal to 1"),
        ({"input_shape": "2x2x1"}, "input_shape Input should be a valid array"),
        ({"input_shape": [4, 4, 1]}, "tensor fc1/weight: expected shape (16, 4), seen (4, 4)"),
        ({"outputs": 10**9}, "outputs Input should be less than or equal to"),
        ({"outputs": True}, "outputs Input should be a valid integer"),
        ({"outputs": 3, "class_names": []}, "expected an output of (3,)"),
        ({"targets": "pickles"}, "targets Input should be 'classes', 'values' or 'tokens'"),
        ({"targets": "tokens"}, "its metadata is damaged: model: expected 10 outputs at every place of a sequence"),
        (
            _attentive(1 << 20),
            "its layers have 1.1e+12 activations for one sample",
        ),
        (
            _attentive(4, weights="fc1"),
            "tied1: expected weights to name an Embedding of the model, seen 'fc1'",
        ),
        ({"loss": "os.system"}, "loss Input should be"),
        ({"mean": [1.0, 2.0]}, "mean and scale: expected 1 values each, seen 2 and 1"),
        ({"scale": [0.0]}, "scale.0 Input should be greater than 0"),
        ({"class_names": ["a"]}, "class_names: expected 10 names, seen 1"),
        ({"class_names": ["a\x1b[2J"] * 10}, "class_names.0 Value error, text with control characters"),
        ({"model": "x" * 5000}, "model String should have at most 4096 characters"),
        ({"steps": -1}, "steps Input should be greater than or equal to 0"),
        ({"format": 3}, "written by a newer taihu (format 3, this one reads up to 2); update it"),
        ({"format": "two"}, "format Input should be 2"),
        ({"definition": {"layer": "Exec", "command": "ls"}}, "unknown layer 'Exec'"),
        ({"definition": [1]}, "definition Input should be an object"),
        ({"definition": _huge(1 << 24), "outputs": 1 << 24}, "tensor fc1/weight: expected shape (4, 16777216)"),
        (
            {"definition": _padded(20), "outputs": 1 << 24, "targets": "values"},
            "its layers have 8.14e+09 activations for one sample, at most 2.68e+08 are half of the memory here",
        ),
        ({"definition": _bordered(1 << 24, stride=1 << 24)}, "its layers have 1.13e+15 activations for one sample"),
        (
            {"definition": None, "model": "resnet20", "input_shape": [8192, 8192, 1]},
            "its layers have 4.91e+10 activations for one sample",
        ),
        (
            {"columns": [["city", [""] * 1001]], "input_shape": [1001]},
            "columns.0 Tuple should have at most 1000 items",
        ),
        ({"job": {"name": "x" * (1 << 24)}}, "characters, expected at most 16,777,216"),
    ],
)
def test_a_hostile_file_has_one_line(
    small: tuple[Path, dict[str, Any]], change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taihu.worker.saved.reading.memory_limit_bytes", lambda: 2 << 30)
    path, said = small
    with pytest.raises(ModelError) as caught:
        load_model(rewritten(path, {**said, **change}))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "its metadata is no table"),
        ("{}", "its metadata lacks classes"),
        ("nothing", "its metadata is damaged: not JSON"),
        ("[" * 100_000, "its metadata is damaged: not JSON"),
        ('{"format": 1' + "0" * 5000 + "}", "its metadata is damaged: not JSON"),
    ],
)
def test_metadata_that_is_no_table(small: tuple[Path, dict[str, Any]], text: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"{small[0]}: {message}"):
        load_model(rewritten(small[0], text))


def test_tensors_that_are_not_the_models(small: tuple[Path, dict[str, Any]]) -> None:
    path, said = small
    tensors = load_file(path)
    with pytest.raises(ModelError, match=r"tensor fc2/bias: expected shape \(10,\), seen nothing"):
        load_model(rewritten(path, said, {name: each for name, each in tensors.items() if name != "fc2/bias"}))
    with pytest.raises(ModelError, match="tensor 'more' is not in the model"):
        load_model(rewritten(path, said, {**tensors, "more": np.zeros(1, np.float32)}))
    with pytest.raises(ModelError, match="buffer norm1/running_mean is not in this model"):
        load_model(rewritten(path, said, {**tensors, "buffers/norm1/running_mean": np.zeros(1, np.float32)}))
    with pytest.raises(ModelError, match="tensor 'fc1/bias' is not float32"):
        load_model(rewritten(path, said, {**tensors, "fc1/bias": np.zeros(4)}))
    save_file(tensors, path)
    with pytest.raises(ModelError, match="not written by `taihu train --save`"):
        load_model(path)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_damage_to_the_metadata_is_an_error_of_one_line(data: st.DataObject) -> None:
    said = json.loads(SMALL.to_metadata())
    key = data.draw(st.sampled_from(sorted(said)))
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=3), inner, max_size=3)
        ),
    )
    said[key] = data.draw(values)
    message = ""
    try:
        parse_metadata(json.dumps(said))
    except ModelError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


SMALL = SavedModel(model="small_cnn", input_shape=(8, 8, 1), outputs=10, data="digits", steps=1)


def test_so_many_samples_are_computed_at_once_as_have_room() -> None:
    convolution = Conv2d(1, 1, 1, 4096, bias=False)
    root = Sequential([convolution, GlobalAvgPool(), Linear(2, bias=False)])
    activations = (8 + 2 * 4096) ** 2 + 1 + 2
    saved = SavedModel(model="any", input_shape=(8, 8, 1), outputs=2, data="digits", steps=1)
    stored = StoredModel(Model(root, saved.input_shape, saved.outputs), np.empty(0, np.float32), saved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taihu.worker.saved.reading.memory_limit_bytes", lambda: 8 << 30)
        assert stored.batch(250) == 2**30 // activations == 15
        assert stored.batch(4) == 4
