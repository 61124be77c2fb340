"""State of compression goes to other workers, and with a layer that is spread no more, or is from now on."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.made_checkpoints import columns_of, held_back, make_checkpoint, tensors_of, without

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.held_back import held_back_by, read_spread_state
from taihu.core.checkpoint.part import RESIDUAL
from taihu.core.checkpoint.reading import open_checkpoint
from taihu.core.checkpoint.resharding import reshard
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec

LAYOUT = Layout(
    (
        LayerSpec("fc2", (TensorSpec("weight", (7, 5)), TensorSpec("bias", (5,)))),
        LayerSpec("fc1", (TensorSpec("weight", (4, 7)), TensorSpec("bias", (7,)))),
        LayerSpec("conv1", (TensorSpec("weight", (3, 3, 2, 4)),)),
    )
)
MOMENTUM = "optimizer.momentum"
SUBSETS = st.sets(st.sampled_from(["fc1", "fc2"]))


def by_tensor(layout: Layout, values: NDArray[np.float32]) -> dict[tuple[str, str], NDArray[np.float32]]:
    specs = [(layer.name, tensor) for layer in layout.layers for tensor in layer.tensors]
    pieces = np.split(values, np.cumsum([tensor.elements for _, tensor in specs])[:-1])
    return {
        (name, tensor.name): each.reshape(tensor.shape) for (name, tensor), each in zip(specs, pieces, strict=True)
    }


def mean_of(name: str, layout: Layout, workers: int) -> dict[tuple[str, str], NDArray[np.float32]]:
    each = [held_back(layout, rank)[name].astype(np.float64) for rank in range(workers)]
    return by_tensor(layout, np.mean(each, axis=0).astype(np.float32))


@settings(max_examples=50)
@given(before=SUBSETS, after=SUBSETS, workers=st.integers(2, 4), now=st.integers(2, 4))
def test_what_workers_hold_back_goes_with_its_tensors(
    before: set[str], after: set[str], workers: int, now: int
) -> None:
    """Of layers that were spread nothing is held back, and their momentum is the velocity of all."""
    was, layout = without(LAYOUT, before), without(LAYOUT, after)
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), LAYOUT, servers=1, workers=workers, spread=before, compressed=True)
        held = [held_back_by(checkpoint, rank, now, layout) for rank in range(now)]
    momentum = tensors_of(LAYOUT, MOMENTUM)
    for rank, each in enumerate(held):
        for name in (RESIDUAL, "velocity"):
            own = by_tensor(was, held_back(was, rank)[name]) if now == workers else mean_of(name, was, workers)
            for key, seen in by_tensor(layout, each[name]).items():
                if key[0] in before:
                    expected = momentum[key] if name == "velocity" else np.zeros_like(seen)
                else:
                    expected = own[key]
                np.testing.assert_allclose(seen, expected, rtol=1e-6, atol=1e-7)
                if now == workers:
                    assert seen.tobytes() == expected.tobytes()
        units = len(was.layers) if layout == was else 0
        assert {len(each[name]) for name in ("bounds", "thresholds", "ages", "kept")} == {units}


@settings(max_examples=50)
@given(before=SUBSETS, after=st.sets(st.sampled_from(["fc1", "fc2"]), min_size=1), workers=st.integers(2, 4))
def test_the_momentum_of_a_layer_that_was_compressed_is_the_mean_velocity(
    before: set[str], after: set[str], workers: int
) -> None:
    was = without(LAYOUT, before)
    velocity, momentum = mean_of("velocity", was, workers), tensors_of(LAYOUT, MOMENTUM)
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), LAYOUT, servers=1, workers=workers, spread=before, compressed=True)
        columns = columns_of(LAYOUT, after, 1, 3)
        seen = np.empty(len(columns.arrays[MOMENTUM]), np.float32)
        read_spread_state(checkpoint, MOMENTUM, columns.blocks(), seen)
    expected = [
        (momentum if each.layer.name in before else velocity)[each.layer.name, tensor.name][..., each.columns]
        for each in columns.layers
        for tensor in each.layer.tensors
    ]
    np.testing.assert_allclose(seen, np.concatenate([each.reshape(-1) for each in expected]), rtol=1e-6, atol=1e-7)


def test_momentum_that_was_not_compressed_is_read_where_it_is(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, LAYOUT, servers=1, workers=2, spread=["fc1"])
    columns = columns_of(LAYOUT, ["fc1", "fc2"], 0, 2)
    seen = np.empty(len(columns.arrays[MOMENTUM]), np.float32)
    read_spread_state(checkpoint, MOMENTUM, columns.blocks(), seen)
    assert seen.tobytes() == columns.arrays[MOMENTUM].tobytes()
    with pytest.raises(CheckpointError, match=r"its gradients were not compressed"):
        held_back_by(checkpoint, 0, 2, LAYOUT)
    with pytest.raises(CheckpointError, match=r"values of 'optimizer.exp_avg' are in none of its files"):
        read_spread_state(checkpoint, "optimizer.exp_avg", columns.blocks(), seen)


def test_of_a_compressed_way_down_nothing_is_held_back_for_spread_layers(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, LAYOUT, servers=1, workers=2, spread=["fc1", "fc2"])
    elements = LAYOUT.offsets[2]
    seen = np.ones(elements + 1, np.float32)
    checkpoint.read_shared(RESIDUAL, LAYOUT, np.array([[0, elements]]), seen[:elements])
    assert not seen[:elements].any()
    with pytest.raises(CheckpointError, match="1 of 76 values of 'residual' are in none of its files"):
        checkpoint.read_shared(RESIDUAL, LAYOUT, np.array([[0, elements + 1]]), seen)


@pytest.mark.parametrize("workers", [1, 2, 6])
def test_what_is_held_back_is_written_anew_for_the_layers_that_are_exchanged_then(
    workers: int, tmp_path: Path
) -> None:
    """One worker spreads none, and over six there are not enough columns of fc2."""
    checkpoint = make_checkpoint(tmp_path / "a", LAYOUT, servers=1, workers=3, spread=["fc1", "fc2"], compressed=True)
    layout = without(LAYOUT, {1: [], 2: ["fc1", "fc2"], 6: ["fc1"]}[workers])
    anew = open_checkpoint(reshard(checkpoint, tmp_path / "b", servers=2, workers=workers))
    assert anew.manifest.layout == layout
    for rank in range(workers):
        expected = held_back_by(checkpoint, rank, workers, layout)
        own = anew.own_of(f"worker {rank}")
        assert all(own[name].tobytes() == values.tobytes() for name, values in expected.items())
