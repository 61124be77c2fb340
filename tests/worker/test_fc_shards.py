"""The first values of layers that are spread: the bits of the whole layer, which nobody ever holds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.made_checkpoints import make_checkpoint, tensors_of

from taihu.core.job import Job
from taihu.core.planner.partition import all_bounds
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Flatten, Linear, Model, Sequential, fill_normal
from taihu.worker.fc.hybrid import HybridModel
from taihu.worker.saved.beginning import begin_from
from taihu.worker.saved.reading import open_model
from taihu.worker.saved.sources import CheckpointSource
from taihu.worker.saved.writing import describe_model, save_model

MB = 1 << 20


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
    # Several blocks, whose rows are no whole number of the generator's 64 bits.
    | st.sampled_from([(2, 200_001), (601, 999), (3, 3, 300, 101), (300_001,)]),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 9),
)
def test_what_is_drawn_row_by_row_is_what_is_drawn_at_once(shape: tuple[int, ...], dtype: type, seed: int) -> None:
    at_once, by_rows = np.random.default_rng(seed), np.random.default_rng(seed)
    target: NDArray[np.floating] = np.zeros(shape, dtype)
    fill_normal(target, by_rows, 0.3)
    assert (target == at_once.standard_normal(shape, dtype=np.float32) * np.float32(0.3)).all()
    assert by_rows.bit_generator.state == at_once.bit_generator.state


class Uniform(Linear):
    """A layer of a user's own that is filled in another way."""

    def fill(self, generator: np.random.Generator) -> None:
        """Uniform weights and bias."""
        for values in self.parameters.values():
            values[...] = generator.uniform(-1, 1, values.shape)


def whole(make: Callable[[int], Linear], shape: tuple[int, ...], units: int) -> Model:
    return Model(Sequential([Flatten(), make(units), Linear(2)]), shape, 2)


def spread(make: Callable[[int], Linear], shape: tuple[int, ...], units: int, *, rank: int, size: int) -> HybridModel:
    return HybridModel(whole(make, shape, units), ["fc1"], rank=rank, size=size, gradient_bytes=4)


@pytest.mark.parametrize("make", [Linear, Uniform, lambda units: Linear(units, bias=False)])
def test_all_columns_together_are_the_layer(make: Callable[[int], Linear]) -> None:
    """600 x 999 values are several blocks."""
    model = whole(make, (600, 1, 1), 999)
    arena = np.zeros(model.layout.elements, np.float32)
    model.bind(arena, arena)
    model.initialize(3)
    bounds = all_bounds(999, 4)
    for name, values in model.parameter_layers[-1].parameters.items():
        columns = []
        for rank in range(4):
            hybrid = spread(make, (600, 1, 1), 999, rank=rank, size=4)
            hybrid.initialize_shards(3)
            width = bounds[rank + 1] - bounds[rank]
            own = hybrid.shards[: 600 * width] if name == "weight" else hybrid.shards[600 * width :]
            columns.append(own.reshape(-1, width))
        np.testing.assert_array_equal(np.hstack(columns), np.atleast_2d(values))


def peak(call: Callable[[], None]) -> int:
    """The most bytes that are taken during the call beside those that are held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_worker_holds_a_whole_layer_at_the_start(tmp_path: Path) -> None:
    """Of 16 MB, each worker has a quarter, whose memory is there before; about a megabyte is drawn, or read."""
    model = whole(Linear, (1024, 1, 1), 4096)
    arena = np.zeros(model.layout.elements, np.float32)
    model.bind(arena, arena)
    assert peak(lambda: model.initialize(1)) < 3 * MB

    hybrid = spread(Linear, (1024, 1, 1), 4096, rank=1, size=4)
    assert hybrid.shards.nbytes == 4 * MB + 4096
    assert peak(lambda: hybrid.initialize_shards(1)) < 3 * MB

    job = Job.model_validate({"data": {"name": "synthetic:1x1024x1:classes=2:samples=8"}})
    save_model(tmp_path / "begin", model, describe_model(job, load_dataset(job.data), model, 1))
    begun = whole(Linear, (1024, 1, 1), 4096)
    with open_model(tmp_path / "begin") as file:
        begin_from(file, begun, ())
        from_file = HybridModel(begun, ["fc1"], rank=1, size=4)
        assert peak(lambda: from_file.initialize_shards(7)) < 3 * MB
    np.testing.assert_array_equal(from_file.shards, hybrid.shards)


@pytest.mark.parametrize("workers", [1, 3])
def test_no_worker_holds_a_whole_layer_that_it_goes_on_with(workers: int, tmp_path: Path) -> None:
    """Columns of 16 MB in one file, or in three by other columns: about a megabyte is read at once."""
    begun = whole(Linear, (1024, 1, 1), 4096)
    checkpoint = make_checkpoint(
        tmp_path, begun.layout, servers=1, workers=workers, spread=["fc1"] if workers > 1 else []
    )
    begin_from(CheckpointSource(checkpoint), begun, ())
    hybrid = HybridModel(begun, ["fc1"], rank=1, size=4)
    for member in checkpoint.manifest.files:
        checkpoint.facts_of(member)
    assert peak(lambda: hybrid.initialize_shards(7)) < 4 * MB
    weight = tensors_of(begun.layout, "parameters")["fc1", "weight"]
    np.testing.assert_array_equal(hybrid.shards[: 1024 * 1024].reshape(1024, 1024), weight[:, 1024:2048])
