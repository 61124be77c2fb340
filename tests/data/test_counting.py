"""The number of training samples before anything is loaded is the one after loading."""

from __future__ import annotations

import csv
import gzip
import os
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from taihu.core.base.errors import DataError
from taihu.core.job import load_job
from taihu.core.settings import DataSettings
from taihu.worker.data.counting import count_training_samples
from taihu.worker.data.load import load_dataset
from taihu.worker.preflight import check_inputs


def agreed(name: str | Path, path: Path | None = None, **given: object) -> int:
    """The count, once loading has confirmed it."""
    settings = DataSettings.model_validate({"name": str(name), "path": path, **given})
    counted = count_training_samples(settings)
    assert counted == len(load_dataset(settings).train)
    return counted


def write_fashion(folder: Path, train: int, *, compressed: bool = False) -> None:
    for part, count in (("train", train), ("t10k", 3)):
        images = struct.pack(">4I", 0x803, count, 28, 28) + bytes(count * 28 * 28)
        labels = struct.pack(">2I", 0x801, count) + bytes(count)
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            file = folder / f"{part}-{kind}-ubyte{'.gz' if compressed else ''}"
            file.write_bytes(gzip.compress(content) if compressed else content)


@pytest.mark.parametrize("compressed", [False, True])
def test_fashion_mnist(tmp_path: Path, compressed: bool) -> None:
    write_fashion(tmp_path, 7, compressed=compressed)
    assert agreed("fashion-mnist", tmp_path) == 7


def test_cifar10_of_any_length(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(bytes(3073 * number))
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
    assert agreed("cifar10", tmp_path) == 15


@pytest.mark.parametrize("name", ["digits", "synthetic:1x4x4:samples=30"])
def test_data_without_files(name: str) -> None:
    assert agreed(name) == {"digits": 1437}.get(name, 30)


@given(st.integers(2, 40), st.floats(0.01, 0.99))
def test_the_share_for_testing_is_taken_off(
    tmp_path_factory: pytest.TempPathFactory, samples: int, share: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "some.npz"
    np.savez(path, x=np.zeros((samples, 3)), y=np.zeros(samples))
    assert 1 <= agreed(path, test_share=share) < samples


@pytest.mark.parametrize("names", [("x_train", "y_train"), ("TRAIN_IMAGES", "TRAIN_LABELS")])
@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_with_a_part_for_testing(tmp_path: Path, names: tuple[str, str], compressed: bool) -> None:
    inputs, targets = names
    arrays: dict[str, Any] = {inputs: np.zeros((9, 4, 4)), targets: np.arange(9) % 2}
    tests: dict[str, Any] = {
        name.replace("train", "test").replace("TRAIN", "TEST"): array[:4] for name, array in arrays.items()
    }
    (np.savez_compressed if compressed else np.savez)(tmp_path / "own.npz", **arrays, **tests)
    assert agreed(tmp_path / "own.npz") == 9
    (tmp_path / "own").mkdir()
    for name, array in {**arrays, **tests}.items():
        np.save(tmp_path / "own" / f"{name}.npy", array)
    assert agreed(tmp_path / "own") == 9


@pytest.mark.parametrize("parted", [False, True])
def test_images_by_class(tmp_path: Path, parted: bool) -> None:
    for part, count in (("train", 5), ("val", 2)) if parted else ((".", 5),):
        for name in ("ant", "bee"):
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "notes.txt").touch()
            for number in range(count):
                Image.new("RGB", (3, 3)).save(tmp_path / part / name / f"{number}.png")
    assert agreed(tmp_path) == (10 if parted else 8)


def write_table(path: Path, rows: int) -> None:
    numbers = np.arange(rows) / 2
    if path.suffix == ".parquet":
        import pyarrow as pa  # noqa: PLC0415 - not in every process that collects this test
        import pyarrow.parquet as pq  # noqa: PLC0415

        pq.write_table(pa.table({"a": numbers, "b": numbers}), path)
        return
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        csv.writer(file).writerows([["a", "b"], *([number, number] for number in numbers)])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / f"train{suffix}", 20)
    assert agreed(tmp_path / f"train{suffix}") == 16
    write_table(tmp_path / f"test{suffix}", 3)
    assert agreed(tmp_path) == 20


def test_what_only_loading_shows_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise AssertionError('not to be run yet')")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    np.savez(tmp_path / "other.npz", z=np.zeros(3))
    np.savez(tmp_path / "scalar.npz", x=np.zeros(()), y=np.zeros(()))
    np.savez(tmp_path / "single.npz", x=np.zeros((1, 2)), y=np.zeros(1))
    write_table(tmp_path / "packed.csv.gz", 9)
    write_table(tmp_path / "large.csv", 9)
    with patch("taihu.worker.data.counting._MOST_BYTES_READ", 20):
        for name in ("own.py:load", "bad.npz", "other.npz", "scalar.npz", "single.npz", "packed.csv.gz", "large.csv"):
            assert count_training_samples(DataSettings(name=str(tmp_path / name))) is None, name
    for damage in (b"", bytes(40)):
        (tmp_path / "train-images-idx3-ubyte").write_bytes(damage)
        assert count_training_samples(DataSettings(name="fashion-mnist", path=tmp_path)) is None


def test_arrays_are_counted_by_their_headers_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 10)}
        np.lib.format.write_array_header_1_0(file, header)
        os.truncate(file.fileno(), 4 << 30)  # a hole: it takes no room on the disk
    np.save(tmp_path / "y.npy", np.zeros(3))
    assert count_training_samples(DataSettings(name=str(tmp_path), test_share=0.5)) == 1 << 19


def test_a_batch_larger_than_the_data_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write_fashion(tmp_path, 7)
    np.savez(tmp_path / "own.npz", x=np.zeros((10, 3)), y=np.zeros(10))
    for name, most in (("fashion-mnist", 7), (str(tmp_path / "own.npz"), 8)):
        tables: dict[str, dict[str, object]] = {
            "data": {"name": name, "path": str(tmp_path)},
            "train": {"batch": 3},
            "cluster": {"workers": 3},
        }
        with pytest.raises(DataError, match=f"batch 3 of 3 workers needs 9 samples, the training set has {most}; "):
            check_inputs(load_job(None, tables))
        check_inputs(load_job(None, tables, {"train": {"batch": 2}}))
