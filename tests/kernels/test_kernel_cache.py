"""Kernels on disk: whatever happens to their files, what is loaded is what was written, or it is compiled anew."""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config as numba_config

from taihu.kernels.base import cache as module
from taihu.kernels.base.jit import kernel

config: Any = numba_config


def checked(pickled: bytes) -> bytes:
    """A whole file with this in it."""
    return module._HEADER + module._checksum(pickled) + pickled


def triple(x: int) -> int:
    return 3 * x


class Cache:
    """A folder of compiled kernels, with one in it; as if every load were a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        assert self.compiled() == 1
        self.written = {path: path.read_bytes() for path in self.files}

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.suffix in {".nbi", ".nbc"})

    def compiled(self) -> int:
        """The number of times that a new process compiles the kernel, whose value is right."""
        made: Any = kernel(triple)
        assert made(14) == 42
        return sum(made.stats.cache_misses.values())

    def put_back(self) -> None:
        for path, content in self.written.items():
            path.write_bytes(content)


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    folder, before = tmp_path_factory.mktemp("kernels"), config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield Cache(folder)
    finally:
        config.CACHE_DIR = before


def test_an_index_and_machine_code_are_written_and_loaded_again(cached: Cache) -> None:
    assert [path.suffix for path in cached.files] == [".nbc", ".nbi"]
    assert cached.compiled() == 0


@given(which=st.integers(0, 1), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
@settings(max_examples=15)
def test_a_file_that_was_cut_off_or_changed_is_written_anew(
    cached: Cache, which: int, where: float, bit: int, *, cut: bool
) -> None:
    cached.put_back()
    path = cached.files[which]
    content = bytearray(cached.written[path])
    place = int(where * len(content))
    content[place] ^= 1 << bit
    path.write_bytes(content[:place] if cut else content)
    assert cached.compiled() == 1
    assert cached.compiled() == 0


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(os.urandom(5000)),
        lambda path: path.write_bytes(b"\x80\x05."),
        lambda path: path.write_bytes(module._HEADER.replace(b"numba 0", b"numba 9") + path.read_bytes()[40:]),
        lambda path: path.write_bytes(checked(b"cmodule_of_before\nname\n.")),
        lambda path: path.write_bytes(checked(b"cpickle\nname_of_before\n.")),
    ],
    ids=["gone", "anything", "a pickle", "another version", "a module of before", "a name of before"],
)
def test_what_is_in_its_place_is_no_kernel(cached: Cache, which: int, damage: Callable[[Path], object]) -> None:
    cached.put_back()
    damage(cached.files[which])
    assert cached.compiled() == 1
    assert cached.compiled() == 0


def test_nothing_of_a_foreign_file_is_unpickled(cached: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cached.put_back()
    for path in cached.files:
        path.write_bytes(b"\x80\x05" + cached.written[path])
    monkeypatch.setattr(pickle, "loads", lambda _: pytest.fail("unpickled"))
    assert cached.compiled() == 1


def test_what_cannot_be_read_nor_written_is_compiled_and_said_once(
    cached: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    cached.put_back()
    index = cached.files[1]
    index.unlink()
    index.mkdir()
    try:
        assert (cached.compiled(), cached.compiled()) == (1, 1)
    finally:
        index.rmdir()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("warning: compiled kernels cannot be kept in ")
    assert said[0].endswith(": Is a directory; set NUMBA_CACHE_DIR to another folder")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine where numba finds no folder, and TMPDIR is this one."""
    from numba.core import caching  # noqa: PLC0415 - what is changed

    monkeypatch.setattr(config, "CACHE_DIR", "")
    for locator in (caching.InTreeCacheLocator, caching.UserWideCacheLocator):
        monkeypatch.setattr(locator, "from_function", classmethod(lambda *_: None))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module._temporary_folder.cache_clear()
    module._say_once.cache_clear()
    yield tmp_path
    module._temporary_folder.cache_clear()


def test_where_no_folder_can_be_written_a_temporary_one_of_the_user_is(nowhere: Path) -> None:
    made = Cache(nowhere)
    assert made.compiled() == 0
    (folder,) = nowhere.iterdir()
    assert folder.name == f"taihu-kernels-{os.geteuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("owned", [True, False])
def test_a_temporary_folder_that_others_may_write_to_is_not_taken(
    nowhere: Path, capsys: pytest.CaptureFixture[str], *, owned: bool
) -> None:
    folder = nowhere / f"taihu-kernels-{os.geteuid()}"
    if owned:
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.write_text("a file")
    made: Any = kernel(triple)
    assert made(5) == 15
    told = "warning: compiled kernels cannot be kept: no folder can be written; set NUMBA_CACHE_DIR to one\n"
    assert capsys.readouterr().err == told
