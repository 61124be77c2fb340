"""Parts of checkpoints on disk: they come back as they were, or it is said that they do not."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.files import file_name, hash_of, open_part, write_part
from taihu.core.checkpoint.part import Elements, Part, State
from taihu.core.checkpoint.places import write_durably

DTYPES = [np.float32, np.int64, np.uint16, np.float64]


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """Any part: ranges of a layout with some arrays, and arrays of its own of any shape and type."""
    sizes = draw(st.lists(st.integers(0, 40), max_size=5))
    stops = np.cumsum(np.array(sizes, dtype=np.int64) + 3) if sizes else np.zeros(0, np.int64)
    bounds = np.stack([stops - np.array(sizes, dtype=np.int64), stops], axis=1).astype(np.int64)
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    names = draw(st.sets(st.sampled_from(["parameters", "optimizer.momentum", "residual"])))
    shared = {name: generator.standard_normal(sum(sizes)).astype(np.float32) for name in sorted(names)}
    own: dict[str, NDArray[Any]] = {}
    for name in draw(st.sets(st.sampled_from(["ages", "kept", "buffers/norm/mean"]))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        own[name] = (generator.standard_normal(shape) * 100).astype(draw(st.sampled_from(DTYPES)))
    facts = draw(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(), st.none()), max_size=3))
    return Part(
        draw(st.sampled_from(["server 0", "worker 12"])),
        draw(st.integers(0, 10**9)),
        State(Elements(bounds, shared), own, facts),
    )


@settings(max_examples=60)
@given(parts())
def test_a_part_comes_back_bit_by_bit(part: Part) -> None:
    with TemporaryDirectory() as folder:
        written = write_part(Path(folder) / "step-000003", part)
        path = Path(folder) / "step-000003" / written.name
        assert (path.stat().st_size, hash_of(path)) == (written.size_bytes, written.sha256)
        assert list(path.parent.iterdir()) == [path]
        with open_part(path) as stored:
            assert (stored.member, stored.step, stored.facts) == (part.member, part.step, part.state.facts)
            state = stored.state()
            for name, values in part.state.shared.arrays.items():
                middle = len(values) // 2
                assert stored.read("shared", name, middle, len(values)).tobytes() == values[middle:].tobytes()
        for before, after in ((part.state.shared.arrays, state.shared.arrays), (part.state.own, state.own)):
            assert before.keys() == after.keys()
            for name, values in before.items():
                assert (after[name].dtype, after[name].shape) == (values.dtype, values.shape)
                assert after[name].tobytes() == values.tobytes()
        if part.state.shared.arrays:
            assert state.shared.bounds.tolist() == part.state.shared.bounds.tolist()
        # Anybody's reader takes it.
        assert {"bounds", *(f"own/{name}" for name in part.state.own)} <= load_file(path).keys()


def test_a_state_is_as_large_as_its_arrays() -> None:
    bounds = np.array([[2, 5]])
    state = State(Elements(bounds, {"parameters": np.zeros(3, np.float32)}), {"ages": np.zeros(2, np.int64)})
    assert (state.size_bytes, state.shared.count, state.is_empty) == (28, 3, False)
    assert State(facts={"plan": 3}).is_empty


def test_a_copy_does_not_change_with_what_it_was_made_of() -> None:
    values, ages = np.ones(3, np.float32), np.ones(2, np.int64)
    copy = State(Elements(np.array([[0, 3]]), {"parameters": values}), {"ages": ages}, {"plan": 1}).copy()
    values[:], ages[:] = 7, 7
    assert copy.shared.arrays["parameters"].tolist() == [1, 1, 1]
    assert copy.own["ages"].tolist() == [1, 1]


def test_files_are_named_by_their_member() -> None:
    assert file_name("server 3") == "server-3.safetensors"


def test_what_cannot_be_written_leaves_the_file_of_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "server-0.safetensors"
    path.write_bytes(b"before")

    def fill_the_disk() -> None:
        with write_durably(path) as file:
            file.write(b"half of")
            raise OSError(28, "disk full")

    with pytest.raises(OSError, match="full"):
        fill_the_disk()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"before"


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synchronized first, then renamed, then the folder is synchronized."""
    path, happened = tmp_path / "a", []
    sync = os.fsync

    def fsync(handle: int) -> None:
        is_folder = os.path.samestat(os.fstat(handle), tmp_path.stat())
        happened.append(("folder" if is_folder else "file", path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with write_durably(path) as file:
        file.write(b"all of it")
    assert happened == [("file", False), ("folder", True)]


@pytest.mark.parametrize("content", [b"", b"nonsense that is no safetensors file"])
def test_what_is_no_part_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "server-0.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"server-0.safetensors: not readable") as raised, open_part(path):
        pass
    assert "\n" not in str(raised.value)


def test_a_saved_model_is_no_part(tmp_path: Path) -> None:
    save_file({"bounds": np.zeros((0, 2), np.int64)}, tmp_path / "model.safetensors", metadata={"taihu": "{}"})
    with (
        pytest.raises(CheckpointError, match="not a part of a checkpoint"),
        open_part(tmp_path / "model.safetensors"),
    ):
        pass


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"server-9.safetensors"), open_part(tmp_path / "server-9.safetensors"):
        pass
