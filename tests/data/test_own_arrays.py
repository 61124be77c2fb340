"""Arrays of the user's own: what is read is what was saved, split and normalised by formula; damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.reading import inputs_of, targets_of

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.sources import check_sources
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.data.own.inputs import ArrayInputs

SHAPES = st.sampled_from([(5,), (4, 3), (4, 3, 2), ()])
DTYPES = st.sampled_from(["uint8", "int16", "float32", "float64", "bool"])


def arrays(shape: tuple[int, ...], dtype: str, train: int = 12, test: int = 5) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(4)
    return {
        "x_train": rng.uniform(0, 2 if dtype == "bool" else 200, (train, *shape)).astype(dtype),
        "y_train": np.arange(train, dtype=np.uint8) % 3,
        "x_test": rng.uniform(0, 2 if dtype == "bool" else 200, (test, *shape)).astype(dtype),
        "y_test": np.arange(test) % 3,
    }


def saved(path: Path, kind: str, content: dict[str, Any], **changed: Any) -> DataSettings:
    """Save arrays as one file or as a folder."""
    content = {name: array for name, array in {**content, **changed}.items() if array is not None}
    if kind == "npz":
        np.savez(path / "mine.npz", **content)
        return DataSettings(name=str(path / "mine.npz"))
    folder = path / "mine"
    folder.mkdir(exist_ok=True)
    for name, array in content.items():
        np.save(folder / f"{name}.npy", array)
    return DataSettings(name=str(folder))


def failure(data: DataSettings) -> str:
    with pytest.raises(DataError) as caught:
        load_dataset(data)
    message = str(caught.value)
    assert "\n" not in message
    assert Path(data.name).name in message
    return message


@pytest.mark.parametrize("kind", ["npz", "npy"])
@settings(deadline=None, max_examples=15)
@given(SHAPES, DTYPES)
def test_what_was_saved_is_read(
    tmp_path_factory: pytest.TempPathFactory, kind: str, shape: tuple[int, ...], dtype: str
) -> None:
    content = arrays(shape, dtype)
    dataset = load_dataset(saved(tmp_path_factory.mktemp("saved"), kind, content))
    expected_shape = shape if len(shape) in {1, 3} else (*shape, 1)
    assert (dataset.input_shape, dataset.outputs, dataset.targets) == (expected_shape, 3, "classes")
    for examples, part in ((dataset.train, "train"), (dataset.test, "test")):
        raw = content[f"x_{part}"].reshape(-1, *expected_shape)
        np.testing.assert_array_equal(inputs_of(dataset, examples), raw.astype(np.float32))
        np.testing.assert_array_equal(targets_of(examples), content[f"y_{part}"])
        assert targets_of(examples).dtype == np.int64
    columns = content["x_train"].reshape(-1, expected_shape[-1]).astype(np.float64)
    deviation = np.where(np.ptp(columns, axis=0) == 0, 1, columns.std(axis=0))
    np.testing.assert_allclose(dataset.mean, columns.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(dataset.scale, deviation, rtol=1e-5)


def test_a_folder_of_arrays_stays_on_disk(tmp_path: Path) -> None:
    dataset = load_dataset(saved(tmp_path, "npy", arrays((4, 3, 2), "uint8")))
    mapped = dataset.train.inputs.array  # type: ignore[attr-defined]
    assert isinstance(mapped, np.memmap)
    images, _ = Batches(dataset, batch=2, workers=2, rank=1, seed=1, augment="crop-flip").batch(3)
    assert images.shape == (2, 4, 3, 2)


@pytest.mark.parametrize("names", [("train_images", "train_labels"), ("X_train", "Y_train"), ("X", "y")])
def test_other_names_of_arrays(tmp_path: Path, names: tuple[str, str]) -> None:
    content = arrays((4,), "float32")
    data = saved(tmp_path, "npz", {names[0]: content["x_train"], names[1]: content["y_train"][:, None]})
    dataset = load_dataset(data)
    assert (len(dataset.train), len(dataset.test)) == (10, 2)


def split_of(dataset: Dataset) -> tuple[list[float], list[float]]:
    train, test = (inputs_of(dataset, part)[:, 0].tolist() for part in (dataset.train, dataset.test))
    return train, test


@settings(deadline=None, max_examples=30)
@given(samples=st.integers(4, 60), share=st.floats(0.01, 0.99), seed=st.integers(0, 9))
def test_a_share_is_set_apart_for_testing(
    tmp_path_factory: pytest.TempPathFactory, samples: int, share: float, seed: int
) -> None:
    content = {"x": np.arange(samples, dtype=np.float64), "y": np.arange(samples) * 0.5}
    data = saved(tmp_path_factory.mktemp("split"), "npz", content)
    data = data.model_copy(update={"test_share": share, "split_seed": seed})
    dataset = load_dataset(data)
    train, test = split_of(dataset)
    assert sorted(train + test) == list(range(samples))
    assert len(test) == min(samples - 1, max(1, round(samples * share)))
    assert split_of(load_dataset(data)) == (train, test)
    np.testing.assert_allclose(targets_of(dataset.train)[:, 0], np.array(train) * 0.5)
    np.testing.assert_allclose(targets_of(dataset.test)[:, 0], np.array(test) * 0.5)
    np.testing.assert_allclose(dataset.mean, np.mean(train), rtol=1e-5)


def test_seeds_split_differently(tmp_path: Path) -> None:
    data = saved(tmp_path, "npz", {"x": np.arange(50.0), "y": np.arange(50) / 3})
    splits = {tuple(split_of(load_dataset(data.model_copy(update={"split_seed": s})))[1]) for s in range(5)}
    assert len(splits) == 5


@pytest.mark.parametrize(
    ("targets", "task", "kind", "outputs"),
    [
        (np.arange(12) % 4, "auto", "classes", 4),
        (np.arange(12) % 2 == 0, "auto", "classes", 2),
        (np.arange(12) % 4, "values", "values", 1),
        (np.arange(12.0) % 4, "classes", "classes", 4),
        (np.arange(12.0), "auto", "values", 1),
        (np.zeros((12, 3)), "auto", "values", 3),
        (np.zeros((12, 3), np.int64), "values", "values", 3),
    ],
)
def test_what_targets_mean(tmp_path: Path, targets: NDArray[Any], task: Any, kind: str, outputs: int) -> None:
    content = {"x": np.eye(12, 3), "y": targets}
    dataset = load_dataset(saved(tmp_path, "npz", content).model_copy(update={"task": task}))
    assert (dataset.targets, dataset.outputs) == (kind, outputs)
    rows = [int(row) for row in dataset.test.rows]  # type: ignore[attr-defined]
    expected = targets[rows] if kind == "classes" else targets[rows].reshape(-1, outputs)
    np.testing.assert_array_equal(targets_of(dataset.test), expected)
    assert targets_of(dataset.test).dtype == (np.int64 if kind == "classes" else np.float32)


def test_names_of_classes(tmp_path: Path) -> None:
    names = np.array(["cat", "dog", "eel", "emu"])
    dataset = load_dataset(saved(tmp_path, "npz", arrays((4,), "float32"), class_names=names))
    assert (dataset.class_names, dataset.outputs) == (("cat", "dog", "eel", "emu"), 4)


@pytest.mark.parametrize("kind", ["npz", "npy"])
@pytest.mark.parametrize("dtype", ["U", "S"])
def test_texts_are_classes(tmp_path: Path, kind: str, dtype: str) -> None:
    names = np.array(["owl", "cat", "ähre"])
    y: dict[str, NDArray[Any]]
    y = {f"y_{part}": np.char.encode(names[np.arange(n) % 3], "utf-8") for part, n in (("train", 12), ("test", 5))}
    y = y if dtype == "S" else {name: np.char.decode(each, "utf-8") for name, each in y.items()}
    data = saved(tmp_path, kind, arrays((4,), "float32"), **y)
    dataset = load_dataset(data)
    assert (dataset.class_names, dataset.targets, dataset.outputs) == (("cat", "owl", "ähre"), "classes", 3)
    np.testing.assert_array_equal(targets_of(dataset.train), np.array([1, 0, 2] * 4))
    np.testing.assert_array_equal(targets_of(dataset.test), [1, 0, 2, 1, 0])
    order = np.char.encode(names[[2, 0, 1]], "utf-8") if dtype == "S" else names[[2, 0, 1]]
    named = saved(tmp_path, kind, arrays((4,), "float32"), **y, class_names=order)
    assert targets_of(load_dataset(named).train)[:3].tolist() == [1, 2, 0]
    y["y_test"] = np.array(["cat"] * 4 + ["emu"])
    message = failure(saved(tmp_path, kind, arrays((4,), "float32"), **y, class_names=order))
    assert "y_test: class 'emu' of sample 4 is none of those for training: 'ähre', 'owl', 'cat'" in message


@pytest.mark.parametrize("shape", [(3, 5, 1), (1, 9, 4), (4, 4, 9), (3, 3, 64), (1, 1, 512), (32, 48, 3)])
def test_few_rows_of_images_are_no_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert load_dataset(saved(tmp_path, "npz", arrays(shape, "uint8"))).input_shape == shape


@pytest.mark.parametrize(
    ("targets", "fragment"),
    [
        (["a"] * 6 + [""] * 6, "y_train: the class of sample 6 is an empty text"),
        (["a"] * 12, "y_train: all samples are of class 'a'"),
        ([f"{number}" for number in range(12)] * 2, None),
        ([f"{number}" for number in range(24)], "y_train: every sample has a text of its own"),
        ([["a", "b"]] * 12, "y_train: texts of shape (12, 2); expected one for each sample"),
    ],
)
def test_texts_that_are_no_classes(tmp_path: Path, targets: list[str], fragment: str | None) -> None:
    content = {"x_train": np.zeros((len(targets), 2)), "y_train": np.array(targets)}
    data = saved(tmp_path, "npz", content)
    if fragment is None:
        assert load_dataset(data).outputs == 12
    else:
        assert fragment in failure(data)


def test_arrays_that_are_not_used_are_said(tmp_path: Path) -> None:
    content = arrays((4,), "float32")
    content |= {"x_val": content["x_test"][:2], "y_val": content["y_test"][:2], "weights": np.zeros(3)}
    dataset = load_dataset(saved(tmp_path, "npz", content))
    assert len(dataset.test) == 5
    assert dataset.told[0].endswith("mine.npz: not used: x_val, y_val and weights")
    dataset = load_dataset(saved(tmp_path, "npz", content, x_test=None, y_test=None))
    assert (len(dataset.train), len(dataset.test)) == (12, 2)
    assert dataset.told[0].endswith("mine.npz: not used: weights")


def test_whole_floating_point_numbers_are_said(tmp_path: Path) -> None:
    dataset = load_dataset(saved(tmp_path, "npz", {"x": np.zeros((12, 2)), "y": np.arange(12.0) % 3}))
    assert dataset.targets == "values"
    assert "y: floating-point numbers are taken for values, though all are whole, 0 to 2; for" in dataset.told[0]
    assert not load_dataset(saved(tmp_path, "npz", {"x": np.zeros((12, 2)), "y": np.arange(12) / 5})).told


NAN_ROW = np.where(np.arange(12)[:, None] == 7, np.nan, np.ones((12, 4)))
CHANNELS_FIRST = np.zeros((12, 3, 8, 8), np.uint8)


@pytest.mark.parametrize("kind", ["npz", "npy"])
@pytest.mark.parametrize(
    ("changed", "fragment"),
    [
        ({"x_train": None}, "array x_train is missing beside y_train"),
        ({"y_test": None}, "array y_test is missing beside x_test"),
        ({"x_train": None, "y_train": None}, "no arrays x_train and y_train; it holds "),
        ({"y_train": np.arange(11) % 3}, "x_train: 12 inputs, but 11 targets in data "),
        ({"x_train": np.zeros((12, 2, 2, 2, 2))}, "inputs of shape (12, 2, 2, 2, 2); expected (n, height"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, np.int64)}, "inputs of shape (0, 4); expected"),
        ({"x_train": np.array(["a"] * 12)}, "inputs of <U1; expected numbers"),
        ({"x_train": NAN_ROW}, "the input of sample 7 is not finite"),
        ({"x_test": np.zeros((5, 3))}, "inputs of shape (3,), expected (4,) as for training"),
        ({"x_train": CHANNELS_FIRST}, "look like (channels, height, width)"),
        ({"x_train": np.zeros((12, 3, 32, 48))}, "x_train: inputs of shape (3, 32, 48) look like (channels, height"),
        ({"x_train": np.zeros((12, 1, 28, 32))}, "x_train: inputs of shape (1, 28, 32) look like (channels, height"),
        ({"x_train": np.zeros((12, 4, 9, 5))}, "x_train: inputs of shape (4, 9, 5) look like (channels, height"),
        ({"y_train": np.eye(3, dtype=int)[np.arange(12) % 3]}, "y_train: of shape (12, 3), looks one-hot; give the"),
        ({"y_train": np.eye(3)[np.arange(12) % 3]}, "y_train: of shape (12, 3), looks one-hot; give the numbers"),
        ({"y_train": np.arange(12) % 3 + 1}, "y_train: no sample of class 0, but of class 3"),
        ({"y_train": np.arange(12) % 3 * 2}, "y_train: no sample of class 1, but of class 4"),
        ({"y_train": np.arange(12) % 3 - 1}, "y_train: class -1 of sample 0 is not in 0..1"),
        ({"y_train": np.zeros(12, np.int64)}, "y_train: all samples are of class 0"),
        ({"y_test": np.array([0, 1, 2, 3, 0])}, "y_test: class 3 of sample 3 is not in 0..2 as for training"),
        ({"y_train": np.zeros((12, 3), np.int64)}, "y_train: whole numbers of shape (12, 3) as targets"),
        ({"y_train": np.array(["a"] * 12)}, "y_test: targets of int64; expected texts"),
        ({"y_train": np.ones((12, 2)), "y_test": np.ones(5)}, "1 values for a sample, expected 2"),
        (
            {"y_train": np.where(np.arange(12) == 5, np.inf, 1.0), "y_test": np.ones(5)},
            "y_train: the target of sample 5 is not",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, kind: str, changed: dict[str, Any], fragment: str) -> None:
    assert fragment in failure(saved(tmp_path, kind, arrays((4,), "float32"), **changed))


def test_numbers_for_testing_are_finite_too(tmp_path: Path) -> None:
    message = failure(saved(tmp_path, "npz", arrays((4,), "float32"), x_test=NAN_ROW[3:8]))
    assert "x_test: the input of sample 4 is not finite" in message


@pytest.mark.parametrize("damage", ["cut", "junk", "pickled", "bits"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    data = saved(tmp_path, "npz", arrays((4, 3, 2), "float32"))
    path = Path(data.name)
    content = path.read_bytes()
    if damage == "pickled":
        saved(tmp_path, "npz", arrays((4,), "float32"), x_train=np.array([{}] * 12, dtype=object))
    else:
        flipped = content[:400] + bytes(value ^ 255 for value in content[400:410]) + content[410:]
        path.write_bytes({"cut": content[:500], "junk": b"junk", "bits": flipped}[damage])
    message = failure(data)
    assert "readable" in message or "cannot be read" in message
    assert ("pickled objects are not loaded" in message) == (damage == "pickled")


@pytest.mark.parametrize("damage", ["cut", "junk", "pickled"])
def test_a_damaged_file_of_a_folder_is_named(tmp_path: Path, damage: str) -> None:
    data = saved(tmp_path, "npy", arrays((4, 3, 2), "float32"))
    path = Path(data.name) / "x_train.npy"
    if damage == "pickled":
        np.save(path, np.array([{}] * 12, dtype=object))
    else:
        path.write_bytes({"cut": path.read_bytes()[:200], "junk": b"junk"}[damage])
    assert f"{path}: not a readable .npy file" in failure(data)


def test_sources_of_arrays(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.npz: not found; give the path of a file .npz"):
        check_sources(str(tmp_path / "none.npz"), None)
    with pytest.raises(DataError, match=r"data folder .*none: not found; give a folder of"):
        check_sources(f"{tmp_path}/none", None)
    check_sources(saved(tmp_path, "npz", arrays((4,), "float32")).name, None)
    check_sources(saved(tmp_path, "npy", arrays((4,), "float32")).name, None)


@settings(deadline=None, max_examples=30)
@given(
    samples=st.integers(1, 20),
    features=st.integers(1, 3),
    portion=st.integers(1, 30),
    offset=st.sampled_from([0, -50, 1e4]),
    seed=st.integers(0, 99),
)
def test_statistics_are_the_same_in_portions_of_any_size(
    samples: int, features: int, portion: int, offset: float, seed: int
) -> None:
    values = (np.random.default_rng(seed).normal(offset, 2, (samples, features))).astype(np.float32)
    values[:, 0] = offset + 0.1
    with patch("taihu.worker.data.base.statistics._CHUNK_VALUES", portion):
        moved, scale, taken = ArrayInputs(values, "x").statistics(np.arange(samples))
    mean = moved if taken is None else moved + taken
    exact = values.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(axis=0), rtol=1e-5, atol=1e-5)
    deviation = np.where(np.ptp(exact, axis=0) == 0, 1, exact.std(axis=0))
    np.testing.assert_allclose(scale, deviation, rtol=1e-4)
    assert (mean[0], scale[0]) == (values[0, 0], 1)


def test_a_number_that_is_not_finite_is_found_in_a_large_array(tmp_path: Path) -> None:
    x = np.zeros((600_000, 2), np.float32)
    x[590_000, 1] = np.nan
    message = failure(saved(tmp_path, "npz", {"x": x, "y": np.zeros(600_000)}))
    assert "the input of sample 590000 is not finite" in message


def test_one_array_under_the_name_of_several(tmp_path: Path) -> None:
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    assert "one array, not an .npz file of several" in failure(DataSettings(name=str(tmp_path / "mine.npz")))
