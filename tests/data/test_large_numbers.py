"""Numbers far from 0 and near to each other: a model gets what float64 makes of them, in every form of data."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.job import Job
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset, evaluation_batches
from taihu.worker.data.base.statistics import read_statistics
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset, with_statistics
from taihu.worker.data.own.inputs import ArrayInputs
from taihu.worker.engine import Linear, Model, Sequential, StepContext
from taihu.worker.saved.prediction import load_model_file
from taihu.worker.saved.writing import describe_model, save_model

FORMS = ("x.npz", "npy", "f32.npz", "f.py:arrays", "f.py:items", "x.parquet")
ROWS = 200
FUNCTION = """
    import numpy as np
    x, y = np.load("x.npy"), np.arange(200) % 2

    def arrays():
        return (x, y), (x, y)

    class Items:
        def __len__(self):
            return 200

        def __getitem__(self, row):
            return x[row], y[row]

    def items():
        return Items(), Items()
"""


def numbers() -> NDArray[np.float64]:
    """Moments within ten minutes, identifiers, and small ones beside them; in turns of rows, not in their order."""
    rng = np.random.default_rng(0)
    columns = 1.7e9 + rng.uniform(0, 600, ROWS), 1_600_000_000.0 + np.arange(ROWS), rng.normal(0, 1, ROWS)
    return np.stack([*columns, np.full(ROWS, 1.7e9 + 1 / 3)], axis=1)


def made(folder: Path, form: str, x: NDArray[np.float64]) -> str:
    y = np.arange(ROWS) % 2
    if form.endswith(".npz"):
        x = x.astype(np.float32) if form == "f32.npz" else x
        np.savez(folder / form, x_train=x, y_train=y, x_test=x, y_test=y)
    elif form == "npy":
        for part in ("train", "test"):
            np.save(folder / f"x_{part}.npy", x)
            np.save(folder / f"y_{part}.npy", y)
        return str(folder) + "/"
    elif form == "x.parquet":
        import pyarrow as pa  # noqa: PLC0415 - not in every process that collects this test
        import pyarrow.parquet as pq  # noqa: PLC0415

        table = pa.table({**{f"c{place}": x[:, place] for place in range(x.shape[1])}, "y": y})
        for part in ("train", "test"):
            pq.write_table(table, folder / f"{part}.parquet")
        return str(folder) + "/"
    else:
        np.save(folder / "x.npy", x)
        (folder / "f.py").write_text(textwrap.dedent(FUNCTION))
    return str(folder / form)


def normalised(dataset: Dataset) -> NDArray[np.float32]:
    return np.concatenate([inputs.copy() for inputs, _ in evaluation_batches(dataset, 64)])


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_those_of_float64(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = numbers()
    dataset = load_dataset(DataSettings(name=made(tmp_path, form, x)))
    if form == "f32.npz":
        x = x.astype(np.float32).astype(np.float64)
    deviation = np.where(np.ptp(x, axis=0) == 0, 1, x.std(axis=0))
    expected = (x - x.mean(axis=0)) / deviation
    got = normalised(dataset)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_array_equal([len(np.unique(column)) for column in got.T], [len(np.unique(c)) for c in x.T])
    batches = Batches(dataset, batch=ROWS, workers=1, rank=0, seed=1)
    order = np.random.default_rng([1, 0]).permutation(ROWS)
    np.testing.assert_array_equal(batches.batch(1)[0], got[order])
    # Read as they are, and normalised by what the data set says: the same.
    read = np.empty((ROWS, 4), np.float32)
    dataset.test.read(np.arange(ROWS), read)
    np.testing.assert_array_equal((read - dataset.mean) / dataset.scale, got)


def test_other_statistics_than_its_own(tmp_path: Path) -> None:
    x = numbers()
    dataset = load_dataset(DataSettings(name=made(tmp_path, "x.npz", x)))
    own = read_statistics(ArrayInputs(x[:50], "x").read, np.arange(50), (4,), "x")
    expected = (x - x[:50].mean(axis=0)) / np.where(np.ptp(x, axis=0) == 0, 1, x[:50].std(axis=0))
    for other in (dataset, replace(dataset, train=dataset.test)):
        np.testing.assert_allclose(normalised(with_statistics(other, own)), expected, atol=2e-5)


@settings(deadline=None, max_examples=60)
@given(
    mean=st.sampled_from([0.0, 1.0, -1e3, 1e6, -1.7e9, 1e12]),
    spread=st.sampled_from([1e-2, 1.0, 600.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_any_mean_and_spread(mean: float, spread: float, seed: int) -> None:
    x = mean + np.random.default_rng(seed).normal(0, spread, (50, 2))
    moved, scale, offset = ArrayInputs(x, "x").statistics(np.arange(50))
    taken = np.zeros(2) if offset is None else offset
    got = ((x - taken).astype(np.float32) - moved) / scale
    if np.ptp(x, axis=0).all():
        np.testing.assert_allclose(got, (x - x.mean(axis=0)) / x.std(axis=0), atol=1e-5)


def test_a_saved_model_takes_them_as_training_did(tmp_path: Path) -> None:
    x = numbers()
    dataset = load_dataset(DataSettings(name=made(tmp_path, "x.npz", x)))
    model = Model(Sequential([Linear(2)]), dataset.input_shape, 2)
    arena = np.arange(1, model.layout.elements + 1, dtype=np.float32)
    model.bind(arena, np.zeros_like(arena))
    save_model(tmp_path / "m.safetensors", model, describe_model(Job(), dataset, model, 1))
    loaded = load_model_file(tmp_path / "m.safetensors")
    context = StepContext(training=False, seed=0, step=0, first_sample=0)
    scores = model.forward(normalised(dataset), context)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(loaded.predict(x), odds / odds.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(loaded.info.mean, x.mean(axis=0), rtol=1e-7)
    read_again = with_statistics(dataset, loaded.info.statistics)
    np.testing.assert_array_equal(normalised(read_again), normalised(dataset))


def test_pixels_keep_their_way() -> None:
    rng = np.random.default_rng(0)
    for pixels in (rng.integers(0, 256, (20, 4, 4, 3), np.uint8), np.full((20, 4, 4, 1), 255, np.uint8)):
        assert ArrayInputs(pixels, "x").statistics(np.arange(20)).offset is None
