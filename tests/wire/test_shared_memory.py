from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.errors import SharedMemoryError
from taihu.core.wire.links.shared_memory import (
    CONTROL_WORDS,
    SharedBuffer,
    SharedDescriptor,
    open_shared,
    remove_leftovers,
)

SHM = Path("/dev/shm")  # noqa: S108 - where the buffers are
CREATE_AND_DIE = """
import os, signal
from taihu.core.wire.links.shared_memory import SharedBuffer
print(SharedBuffer.create(100).descriptor.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def open_files() -> set[str]:
    """Files in /dev/shm that this process has open or mapped, and where."""
    links = {f"{path.name} {path.readlink()}" for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return {text for text in links.union(mapped) if f"{SHM}/taihu-" in text}


def opened_since(before: set[str]) -> set[str]:
    """Those that are open and were not before. To look for garbage takes long: it is done where there may be some."""
    if open_files() - before:
        gc.collect()
    return open_files() - before


@pytest.fixture
def buffer() -> Iterator[SharedBuffer]:
    with SharedBuffer.create(1000) as created:
        yield created


def test_both_sides_see_the_same_memory(buffer: SharedBuffer) -> None:
    with open_shared(buffer.descriptor) as opened:
        opened.array(np.float32, 3, 8)[:] = [1, 2, 3]
        opened.control[8] = 7
        assert buffer.array(np.float32, 5, 4).tolist() == [0, 1, 2, 3, 0]
        assert buffer.control[8] == 7
        assert opened.size_bytes == buffer.size_bytes == 1000


def test_words_and_data_are_apart_and_aligned(buffer: SharedBuffer) -> None:
    data = buffer.array(np.uint8, 1000)
    assert buffer.control.shape == (CONTROL_WORDS,)
    assert not buffer.control.any()
    assert not data.any()
    assert buffer.control.ctypes.data % 64 == 0
    assert data.ctypes.data % 64 == 0
    data[:] = 255
    buffer.control[:] = -1
    open_shared(buffer.descriptor).close()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400), st.sampled_from(["u1", "u2", "f4", "f8"]), st.integers(-1, 120), st.integers(-8, 420))
def test_arrays_lie_inside_the_data_area(size: int, dtype: str, count: int, offset: int) -> None:
    with SharedBuffer.create(size) as buffer:
        width = np.dtype(dtype).itemsize
        if count >= 0 <= offset <= offset + count * width <= size and offset % width == 0:
            array = buffer.array(dtype, count, offset)
            array[:] = 1
            assert buffer.array(np.uint8, size).tobytes() == (
                bytes(offset) + np.ones(count, dtype).tobytes() + bytes(size - offset - count * width)
            )
        else:
            with pytest.raises(ValueError, match=r"expected an aligned range of \d+ shared bytes"):
                buffer.array(dtype, count, offset)


def test_views_outlive_the_buffer_and_then_nothing_stays_open() -> None:
    before = open_files()
    buffer = SharedBuffer.create(64)
    view = buffer.array(np.float64, 8)
    buffer.close()
    buffer.close()
    view[:] = 3.0
    assert view.sum() == 24.0
    assert not Path(buffer.descriptor.path).exists()
    assert opened_since(before)
    del view
    assert not opened_since(before)
    with pytest.raises(ValueError, match="is closed: use it before that"):
        buffer.array(np.float64, 1)


def test_the_memory_stays_when_the_name_is_removed(buffer: SharedBuffer) -> None:
    with open_shared(buffer.descriptor) as opened:
        opened.unlink()
        buffer.unlink()
        assert not Path(buffer.descriptor.path).exists()
        opened.array(np.int64, 1)[0] = 5
        assert buffer.array(np.int64, 1)[0] == 5
    with pytest.raises(SharedMemoryError, match="cannot be opened"):
        open_shared(buffer.descriptor)


def test_a_peer_that_closes_leaves_the_name(buffer: SharedBuffer) -> None:
    open_shared(buffer.descriptor).close()
    open_shared(buffer.descriptor).close()


def test_nobody_else_may_open_the_file(buffer: SharedBuffer) -> None:
    path = Path(buffer.descriptor.path)
    assert path.parent == SHM
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 >= 1000
    assert len(buffer.descriptor.token) == 16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token": bytes(16)}, "holds another token"),
        ({"token": b""}, "holds another token"),
        ({"boot_id": "elsewhere"}, "this machine's boot is"),
        ({"size_bytes": 999}, "holds 1000 bytes: its creator announced 999"),
        ({"size_bytes": 1001}, "announced 1001"),
        ({"size_bytes": -4096}, "announced -4096"),
        ({"path": "/etc/passwd"}, "expected /dev/shm/taihu-"),
        ({"path": f"{SHM}/../etc/passwd"}, "expected /dev/shm/taihu-"),
        ({"path": f"{SHM}/other"}, "expected /dev/shm/taihu-"),
        ({"path": ""}, "expected /dev/shm/taihu-"),
        ({"path": f"{SHM}/taihu-1-1-1-{'0' * 32}"}, "cannot be opened: .*No such file"),
        ({"path": f"{SHM}/taihu-1-1-1-{'0' * 32}\n"}, "expected /dev/shm/taihu-"),
        ({"path": f"{SHM}/taihu-1-1-1-\0"}, "expected /dev/shm/taihu-"),
    ],
)
def test_a_wrong_descriptor_is_refused_and_nothing_stays_open(
    buffer: SharedBuffer, change: dict[str, object], reason: str
) -> None:
    before = open_files()
    with pytest.raises(SharedMemoryError, match=reason):
        open_shared(dataclasses.replace(buffer.descriptor, **change))  # type: ignore[arg-type]
    assert not opened_since(before)


@pytest.mark.parametrize("prefix", [f"{SHM}/./", f"{SHM}//", f"/{SHM}/", "/var/", f"{SHM}/sub/"])
def test_another_spelling_of_the_path_is_refused(buffer: SharedBuffer, prefix: str) -> None:
    name = Path(buffer.descriptor.path).name
    with pytest.raises(SharedMemoryError, match="expected /dev/shm/taihu-"):
        open_shared(dataclasses.replace(buffer.descriptor, path=prefix + name))


def own_name(buffer: SharedBuffer) -> Path:
    """A path that this living process could have made."""
    return Path(buffer.descriptor.path[:-4] + ("0000" if buffer.descriptor.path[-4:] != "0000" else "1111"))


@pytest.mark.parametrize("kind", ["symlink", "directory", "fifo", "truncated"])
def test_what_is_no_such_file_is_refused(buffer: SharedBuffer, kind: str) -> None:
    path = own_name(buffer)
    if kind == "symlink":
        path.symlink_to(buffer.descriptor.path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.touch()
    before = open_files()
    try:
        with pytest.raises(SharedMemoryError):
            open_shared(dataclasses.replace(buffer.descriptor, path=str(path)))
        assert not opened_since(before)
    finally:
        path.rmdir() if kind == "directory" else path.unlink()


def test_a_file_of_another_user_is_refused(buffer: SharedBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SharedMemoryError, match="expected a regular file of user"):
        open_shared(buffer.descriptor)


def test_too_much_memory_is_refused_and_leaves_nothing() -> None:
    names, before = set(SHM.iterdir()), open_files()
    with pytest.raises(SharedMemoryError, match="no shared buffer of 1125899906842624 bytes"):
        SharedBuffer.create(1 << 50)
    assert {path for path in SHM.iterdir() if f"-{os.getpid()}-" in path.name} <= names
    assert not opened_since(before)
    with pytest.raises(ValueError, match="shared buffer of -1 bytes"):
        SharedBuffer.create(-1)


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(buffer: SharedBuffer) -> None:
    path = own_name(buffer)
    fields = path.name.split("-")
    # The same pid with another start time is another process; another pid namespace cannot be looked up.
    recycled = SHM / "-".join([*fields[:3], str(int(fields[3]) + 1), fields[4]])
    foreign = SHM / "-".join([fields[0], "1", *fields[2:3], str(int(fields[3]) + 1), fields[4]])
    unrelated = SHM / f"taihu-test-{os.getpid()}"
    for made in (recycled, foreign, unrelated):
        made.touch()
    try:
        child = subprocess.run([sys.executable, "-c", CREATE_AND_DIE], capture_output=True, text=True, check=False)
        left = Path(child.stdout.strip())
        assert left.name.startswith("taihu-")
        remove_leftovers()
        assert not left.exists()
        assert not recycled.exists()
        assert foreign.exists()
        assert unrelated.exists()
        open_shared(buffer.descriptor).close()
    finally:
        for made in (recycled, foreign, unrelated):
            made.unlink(missing_ok=True)


def test_creating_removes_leftovers(buffer: SharedBuffer) -> None:
    fields = own_name(buffer).name.split("-")
    recycled = SHM / "-".join([*fields[:3], str(int(fields[3]) + 1), fields[4]])
    recycled.touch()
    SharedBuffer.create(0).close()
    assert not recycled.exists()


def test_a_descriptor_is_plain_fields(buffer: SharedBuffer) -> None:
    fields = dataclasses.asdict(buffer.descriptor)
    assert {name: type(value) for name, value in fields.items()} == {
        "boot_id": str,
        "path": str,
        "token": bytes,
        "size_bytes": int,
    }
    open_shared(SharedDescriptor(**fields)).close()
