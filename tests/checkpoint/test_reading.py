"""Checkpoints are read by as many processes as there are now, and what is damaged is found."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster import layout_of
from support.made_checkpoints import NAMES, make_checkpoint, values_of

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.manifest import MANIFEST, parse_manifest
from taihu.core.checkpoint.places import Place, inside
from taihu.core.checkpoint.reading import open_checkpoint
from taihu.core.checkpoint.resharding import reshard
from taihu.core.planner.partition import Shard

LAYOUT = layout_of(1, 70, 3, 409)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
)
def test_any_number_of_servers_reads_what_any_other_has_written(sizes: list[int], before: int, after: int) -> None:
    layout = layout_of(*sizes)
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), layout, servers=before)
        for index in range(after):
            bounds = Shard(layout, after, index).bounds
            for name in NAMES:
                expected = np.concatenate([values_of(layout, name)[start:stop] for start, stop in bounds])
                seen = np.full(len(expected), np.nan, dtype=np.float32)
                checkpoint.read_shared(name, layout, bounds, seen)
                assert seen.tobytes() == expected.tobytes()
        assert checkpoint.names("shared", "columns") == set(NAMES)


@settings(max_examples=20)
@given(before=st.integers(1, 4), servers=st.integers(0, 4), workers=st.integers(1, 3))
def test_a_checkpoint_written_anew_holds_the_same(before: int, servers: int, workers: int) -> None:
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / "a", LAYOUT, servers=before)
        place = reshard(checkpoint, Path(folder) / "b", servers=servers, workers=workers)
        anew = open_checkpoint(place)
        anew.verify()
        assert (anew.manifest.servers, anew.manifest.workers, anew.step) == (servers, workers, 3)
        for name in NAMES:
            seen = np.empty(LAYOUT.elements, dtype=np.float32)
            anew.read_shared(name, LAYOUT, np.array([[0, LAYOUT.elements]]), seen)
            assert seen.tobytes() == values_of(LAYOUT, name).tobytes()
        # A server finds all that it needs in its own file.
        for index in range(servers):
            state = anew.state_of(f"server {index}")
            assert state is not None
            assert state.shared.bounds.tolist() == Shard(LAYOUT, servers, index).bounds.tolist()
        first = anew.state_of("worker 0")
        assert first is not None
        assert first.own["buffers/norm/mean"].tolist() == [0, 1, 2, 3]
        with pytest.raises(CheckpointError, match="it is there already; give another folder"):
            reshard(checkpoint, Path(folder) / "b", servers=servers, workers=workers)


@settings(max_examples=60)
@given(st.data())
def test_a_byte_that_was_flipped_anywhere_is_found(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder), LAYOUT, servers=2)
        path = data.draw(st.sampled_from(inside(checkpoint.folder)))
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(bytes(content))
        if path.name != MANIFEST:
            with pytest.raises(CheckpointError, match=path.name):
                open_checkpoint(checkpoint.folder).verify()
            member = path.name.partition(".")[0].replace("-", " ")
            with pytest.raises(CheckpointError, match=path.name):
                open_checkpoint(checkpoint.folder).state_of(member)


def test_a_file_that_is_shorter_or_gone_is_found(place: Place) -> None:
    checkpoint = make_checkpoint(place, LAYOUT, servers=2)
    path = checkpoint.folder / "server-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"server-1.safetensors: [\d,]+ bytes, expected [\d,]+; it is damaged"):
        checkpoint.verify()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"server-1.safetensors: cannot be read: "):
        checkpoint.verify()


def test_a_file_of_another_step_or_member_is_found(place: Place) -> None:
    """Two checkpoints whose files were mixed up have the right sums of the wrong values."""
    checkpoint = make_checkpoint(place, LAYOUT, servers=2)
    files = checkpoint.manifest.files
    swapped = checkpoint.manifest.model_copy(update={"files": {**files, "server 0": files["server 1"]}})
    (checkpoint.folder / MANIFEST).write_bytes(swapped.to_json().encode())
    with pytest.raises(CheckpointError, match="the file of server 0 is of server 1 after step 3"):
        open_checkpoint(checkpoint.folder).state_of("server 0")


def test_values_that_no_file_has_are_said_to_be_missing(place: Place) -> None:
    checkpoint = make_checkpoint(place, LAYOUT, servers=2)
    with pytest.raises(CheckpointError, match=r"5 of 5 values of 'optimizer.exp_avg' are in none of its files"):
        checkpoint.read_shared("optimizer.exp_avg", LAYOUT, np.array([[0, 5]]), np.empty(5, np.float32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged manifest"),
        ('{"format": 2}', "damaged manifest: format"),
        ('{"format": 1, "files": {"server 0": {"name": "../../etc/passwd"}}}', "damaged manifest"),
    ],
)
def test_a_manifest_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_manifest(text)


def test_a_manifest_names_no_file_outside_of_its_folder(place: Place) -> None:
    checkpoint = make_checkpoint(place, LAYOUT, servers=1)
    text = checkpoint.manifest.to_json().replace("server-0.safetensors", "../server-0.safetensors")
    with pytest.raises(CheckpointError, match=r"damaged manifest: files.server 0.name"):
        parse_manifest(text)


def test_a_manifest_says_of_which_model_it_is(place: Place) -> None:
    made = make_checkpoint(place, LAYOUT, servers=3, workers=2)
    manifest = made.manifest
    assert parse_manifest(manifest.to_json()) == manifest
    assert manifest.layout == LAYOUT
    files = [made.folder / entry.name for entry in manifest.files.values()]
    assert manifest.size_bytes == sum(len(path.read_bytes()) for path in files)
