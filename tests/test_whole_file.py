"""Files appear whole or not at all, and what cannot be written is said in one line that names the file."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from support.limits import largest_file

from taihu.core.base.errors import WriteError
from taihu.core.base.whole_file import make_folder, replaced, reserve, write_bytes, write_text, writing


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "results.json"
    if before is not None:
        path.write_bytes(before)
    with largest_file(100), pytest.raises(WriteError, match=re.escape(f"cannot write {path}: File too large")):
        write_bytes(path, bytes(101))
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if before is None else [before])
    with largest_file(100):
        write_bytes(path, bytes(100))
    assert path.read_bytes() == bytes(100)


def test_a_device_and_a_pipe_are_written_in_place(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"cannot write /dev/full: No space left on device"):
        write_text(Path("/dev/full"), "text")
    write_text(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(tmp_path / "pipe", "näher")
        assert os.read(reader, 100).decode() == "näher"
    finally:
        os.close(reader)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder/file").read_text() == "text"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG])
def test_whatever_a_disk_says_is_said_with_the_file(tmp_path: Path, number: int) -> None:
    path = tmp_path / "file"

    def write() -> None:
        with replaced(path) as partial:
            partial.write_text("half")
            raise OSError(number, os.strerror(number))

    with pytest.raises(WriteError) as caught:
        write()
    assert str(caught.value) == f"cannot write {path}: {os.strerror(number)}"
    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WriteError, match=re.escape(f"cannot write {path}: {os.strerror(number)}")), writing(path):
        raise OSError(number, os.strerror(number))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=re.escape(f"cannot write {tmp_path}/file/folder: Not a directory")):
        make_folder(tmp_path / "file" / "folder")


def test_room_is_taken_before_anything_is_written(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        reserve(file.fileno(), 1000)
        assert (tmp_path / "file").stat().st_size == 1000
        with largest_file(2000), pytest.raises(OSError, match="File too large"):
            reserve(file.fileno(), 2001)
    reader, writer = os.pipe()
    reserve(writer, 1000)  # a pipe has no room to take
    os.close(reader)
    os.close(writer)
