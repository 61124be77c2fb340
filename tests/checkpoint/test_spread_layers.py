"""Layers that were spread over workers are read by as many workers, by others, and by those that exchange them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.made_checkpoints import (
    NAMES,
    columns_of,
    make_checkpoint,
    tensors_of,
    without,
)

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint import reading
from taihu.core.checkpoint.blocks import column_block
from taihu.core.checkpoint.manifest import MANIFEST
from taihu.core.checkpoint.part import PARAMETERS, Columns, Part, SpreadLayer, State, column_blocks
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.resharding import reshard
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.partition import Shard

MOMENTUM = "optimizer.momentum"


def linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> LayerSpec:
    tensors = (TensorSpec("weight", (inputs, outputs)), TensorSpec("bias", (outputs,)))
    return LayerSpec(name, tensors if bias else tensors[:1])


CONVOLUTION = LayerSpec("conv1", (TensorSpec("weight", (3, 3, 2, 5)), TensorSpec("bias", (5,))))
LAYOUT = Layout((linear("fc3", 4, 3), linear("fc2", 7, 4, bias=False), linear("fc1", 5, 7), CONVOLUTION))
NAMES_OF_SPREAD = ("fc1", "fc2", "fc3")
SUBSETS = st.sets(st.sampled_from(NAMES_OF_SPREAD))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, int, frozenset[str]]:
    """Servers, workers, and the layers that these spread: none alone, and none with fewer columns than there are."""
    servers, workers = draw(st.integers(0, 3)), draw(st.integers(1, 7))
    most = {layer.name: layer.tensors[0].shape[-1] for layer in LAYOUT.layers}
    return servers, workers, frozenset(name for name in draw(SUBSETS) if 1 < workers <= most[name])


def expect_all(checkpoint: Checkpoint, servers: int, workers: int, spread: Collection[str]) -> None:
    """A run of so many that spread these layers finds all that it needs."""
    exchanged = without(LAYOUT, spread)
    for name in NAMES:
        tensors = tensors_of(LAYOUT, name)
        kept = [values.reshape(-1) for (layer, _), values in tensors.items() if layer not in spread]
        arena = np.concatenate([np.zeros(0, np.float32), *kept])
        for index in range(max(servers, 1)):
            bounds = Shard(exchanged, max(servers, 1), index).bounds
            expected = np.concatenate([np.zeros(0, np.float32), *(arena[start:stop] for start, stop in bounds)])
            seen = np.full(len(expected), np.nan, dtype=np.float32)
            checkpoint.read_shared(name, exchanged, bounds, seen)
            assert seen.tobytes() == expected.tobytes()
        for rank in range(workers):
            columns = columns_of(LAYOUT, spread, rank, workers)
            if columns.layers:
                seen = np.full(len(columns.arrays[name]), np.nan, dtype=np.float32)
                checkpoint.read(name, columns.blocks(), seen)
                assert seen.tobytes() == columns.arrays[name].tobytes()


@settings(max_examples=60)
@given(before=worlds(), after=worlds(), at_once=st.sampled_from([1, 9, 1 << 18]))
def test_any_run_reads_what_any_other_has_written(
    before: tuple[int, int, frozenset[str]], after: tuple[int, int, frozenset[str]], at_once: int
) -> None:
    """However many values are read at once."""
    servers, workers, spread = before
    with TemporaryDirectory() as folder, patch.object(reading, "_VALUES_AT_ONCE", at_once):
        checkpoint = make_checkpoint(Path(folder), LAYOUT, servers=servers, workers=workers, spread=spread)
        assert checkpoint.layout == LAYOUT
        assert checkpoint.manifest.layout == without(LAYOUT, spread)
        assert checkpoint.names("shared", "columns") == set(NAMES)
        expect_all(checkpoint, *after)


@settings(max_examples=30)
@given(before=worlds(), servers=st.integers(0, 3), workers=st.integers(1, 7))
def test_a_checkpoint_written_anew_holds_the_same(
    before: tuple[int, int, frozenset[str]], servers: int, workers: int
) -> None:
    with TemporaryDirectory() as folder:
        known, place = Path(folder) / "a", Path(folder) / "b"
        checkpoint = make_checkpoint(known, LAYOUT, servers=before[0], workers=before[1], spread=before[2])
        anew = open_checkpoint(reshard(checkpoint, place, servers=servers, workers=workers))
        anew.verify()
        spread = {layer for layer in before[2] if 1 < workers <= LAYOUT_WIDTHS[layer]}
        assert (anew.manifest.servers, anew.manifest.workers, anew.step) == (servers, workers, 3)
        assert anew.layout == LAYOUT
        assert {each.layer.name for each in anew.spread} == spread
        # As a run of so many would have written it.
        same = make_checkpoint(Path(folder) / "c", LAYOUT, servers=servers, workers=workers, spread=spread)
        assert anew.manifest.files.keys() == same.manifest.files.keys()
        for member in same.manifest.files:
            files = [load_file(each.file_of(member)) for each in (anew, same)]
            assert files[0].keys() == files[1].keys()
            assert all(files[0][name].tobytes() == values.tobytes() for name, values in files[1].items()), member
        expect_all(anew, servers, workers, spread)


LAYOUT_WIDTHS = {layer.name: layer.tensors[0].shape[-1] for layer in LAYOUT.layers}


@settings(max_examples=80)
@given(st.data())
def test_a_byte_that_was_flipped_anywhere_is_found(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), LAYOUT, servers=1, workers=2, spread=NAMES_OF_SPREAD)
        path = data.draw(st.sampled_from(sorted(map(checkpoint.file_of, checkpoint.manifest.files))))
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=path.name):
            open_checkpoint(checkpoint.folder).verify()
        with pytest.raises(CheckpointError):
            open_checkpoint(checkpoint.folder).read_shared(
                PARAMETERS, LAYOUT, np.array([[0, LAYOUT.elements]]), np.empty(LAYOUT.elements, np.float32)
            )


def test_a_worker_reads_no_file_of_columns_that_others_have(tmp_path: Path) -> None:
    """Of as many workers each goes on though the other's file is damaged."""
    checkpoint = make_checkpoint(tmp_path, LAYOUT, servers=1, workers=2, spread=NAMES_OF_SPREAD)
    path = checkpoint.folder / "worker-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    for rank in range(2):
        own = columns_of(LAYOUT, NAMES_OF_SPREAD, rank, 2)
        seen = np.empty(len(own.arrays[MOMENTUM]), np.float32)
        if rank == 0:
            checkpoint.read(MOMENTUM, own.blocks(), seen)
            assert seen.tobytes() == own.arrays[MOMENTUM].tobytes()
        else:
            with pytest.raises(CheckpointError, match=r"worker-1\.safetensors"):
                checkpoint.read(MOMENTUM, own.blocks(), seen)


def test_columns_that_no_file_has_are_said_to_be_missing(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, LAYOUT, servers=1, workers=2, spread=["fc1"])
    kept = {member: entry for member, entry in checkpoint.manifest.files.items() if member != "worker 1"}
    manifest = checkpoint.manifest.model_copy(update={"files": kept})
    (checkpoint.folder / MANIFEST).write_bytes(manifest.to_json().encode())
    block = column_block("fc1/weight", (5, 7), range(7))
    with pytest.raises(CheckpointError, match=r"20 of 35 values of 'parameters' are in none of its files"):
        open_checkpoint(checkpoint.folder).read(PARAMETERS, [block], np.empty(35, np.float32))


def test_a_model_is_another_one_where_a_layer_that_is_exchanged_is(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, LAYOUT, servers=1, workers=2, spread=["fc1", "fc3"])
    assert checkpoint.difference(LAYOUT, spreads=False) is None
    for spread in ((), ("fc1",), ("fc2", "fc3")):
        assert checkpoint.difference(without(LAYOUT, spread), spreads=True) is None
    assert checkpoint.difference(without(LAYOUT, ["fc1"]), spreads=False) is not None
    wider = Layout((linear("fc3", 4, 3), linear("fc1", 5, 8), CONVOLUTION))
    assert "fc1 (weight 5x8, bias 8) here" in str(checkpoint.difference(wider, spreads=True))
    longer = Layout((*LAYOUT.layers, LayerSpec("conv0", CONVOLUTION.tensors)))
    assert checkpoint.difference(longer, spreads=True) == "5 layers here, 4 there"


def test_a_state_with_columns_is_as_large_as_its_arrays_and_is_copied() -> None:
    values = np.ones(6, np.float32)
    layer = SpreadLayer(linear("fc1", 2, 4), 1, range(2, 4))
    state = State(columns=Columns((layer,), {PARAMETERS: values}))
    assert (state.size_bytes, state.is_empty, sum(block.elements for block in column_blocks([layer]))) == (
        24,
        False,
        6,
    )
    copy = Part("worker 1", 3, state.copy()).state
    values[:] = 7
    assert copy.columns.arrays[PARAMETERS].tolist() == [1] * 6
    assert copy.columns.layers == (layer,)
