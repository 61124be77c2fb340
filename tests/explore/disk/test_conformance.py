"""Files in memory against those of the machine: the same operations, the same results and errors."""

from __future__ import annotations

import builtins
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.explore.carriers import Greenlets
from taihu.explore.disk.disk import SHARED, Disk
from taihu.explore.disk.modules import DiskStandIns, provide_disk
from taihu.explore.orders import RandomOrder
from taihu.explore.scheduler import Scheduler
from taihu.explore.tasks import Process

_STAND_INS = DiskStandIns()
_NAMES = ("a", "b", "d", "d/a", "d/e", "d/e/b", "a/b")
_ACCESS = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)
_MORE = (0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_TRUNC, os.O_CREAT | os.O_TRUNC, os.O_APPEND | os.O_CREAT)
_FORMS = ("r", "w", "a", "x", "rb", "wb", "ab", "r+", "w+b", "a+")

_PATHS = st.sampled_from(_NAMES)
_PLACES = st.integers(0, 40)
_BYTES = st.binary(max_size=30)
_FILES = st.integers(0, 2)
_OPERATIONS = st.one_of(
    st.tuples(st.just("open"), _PATHS, st.sampled_from(_ACCESS), st.sampled_from(_MORE)),
    st.tuples(st.just("read"), _FILES, _PLACES),
    st.tuples(st.just("write"), _FILES, _BYTES),
    st.tuples(st.just("pwrite"), _FILES, _BYTES, _PLACES),
    st.tuples(st.just("pread"), _FILES, _PLACES, _PLACES),
    st.tuples(st.just("seek"), _FILES, st.integers(-10, 40), st.integers(0, 2)),
    st.tuples(st.just("ftruncate"), _FILES, _PLACES),
    st.tuples(st.just("allocate"), _FILES, _PLACES, _PLACES),
    st.tuples(st.just("fsync"), _FILES),
    st.tuples(st.just("fstat"), _FILES),
    st.tuples(st.just("close"), _FILES),
    st.tuples(st.sampled_from(("unlink", "mkdir", "rmdir", "list", "stat", "rmtree", "makedirs")), _PATHS),
    st.tuples(st.sampled_from(("rename", "link")), _PATHS, _PATHS),
    st.tuples(st.just("file"), _PATHS, st.sampled_from(_FORMS), st.text("ab\nü", max_size=20)),
    st.tuples(st.sampled_from(("read_bytes", "exists", "is_file", "is_dir", "glob", "touch")), _PATHS),
)


class System(NamedTuple):
    """Things that are compared: modules, and a folder to work in."""

    os: Any
    path: Any
    shutil: Any
    open: Callable[..., Any]
    top: str


class Doing:
    """Does operations, and tells their results in words that do not depend on where."""

    def __init__(self, system: System) -> None:
        self._on = system
        self._files: list[int] = []

    def told(self, operation: tuple[Any, ...]) -> object:
        """The result, or the number of the error."""
        name, *arguments = operation
        try:
            if (do := getattr(self, f"do_{name}", None)) is not None:
                return do(*arguments)
            return self._of_path(name, *arguments)
        except OSError as error:
            return f"{type(error).__name__} {error.errno}"
        except ValueError as error:
            return str(error)

    def end(self) -> object:
        """Close all; what there is then."""
        for each in self._files:
            self._on.os.close(each)
        found = []
        for folder, folders, files in self._on.os.walk(self._on.top):
            inside = [(each, self._on.path(folder, each).read_bytes()) for each in sorted(files)]
            found.append((folder.removeprefix(self._on.top), sorted(folders), inside))
        return sorted(found)

    def _at(self, path: str) -> str:
        return f"{self._on.top}/{path}"

    def _of_path(self, name: str, path: str) -> object:
        """A method of `pathlib.Path`."""
        return getattr(self._on.path(self._at(path)), name)()

    def do_open(self, path: str, access: int, more: int) -> object:
        if len(self._files) == 3:
            self._on.os.close(self._files.pop(0))
        self._files.append(self._on.os.open(self._at(path), access | more, 0o640))
        return len(self._files)

    def _file(self, number: int) -> int:
        return self._files[number] if number < len(self._files) else 1 << 21

    def do_read(self, number: int, size: int) -> object:
        return self._on.os.read(self._file(number), size)

    def do_write(self, number: int, data: bytes) -> object:
        return self._on.os.write(self._file(number), data)

    def do_pwrite(self, number: int, data: bytes, place: int) -> object:
        return self._on.os.pwrite(self._file(number), data, place)

    def do_pread(self, number: int, size: int, place: int) -> object:
        into = bytearray(size)
        return self._on.os.preadv(self._file(number), [into], place), into

    def do_seek(self, number: int, place: int, whence: int) -> object:
        if stat.S_ISDIR(self._on.os.fstat(self._file(number)).st_mode):
            return None  # each file system has places of its own in folders
        return self._on.os.lseek(self._file(number), place, whence)

    def do_ftruncate(self, number: int, size: int) -> object:
        return self._on.os.ftruncate(self._file(number), size)

    def do_allocate(self, number: int, place: int, size: int) -> object:
        return self._on.os.posix_fallocate(self._file(number), place, size)

    def do_fsync(self, number: int) -> object:
        return self._on.os.fsync(self._file(number))

    def do_close(self, number: int) -> object:
        self._on.os.close(self._file(number))
        return self._files.pop(number) and None

    def do_fstat(self, number: int) -> object:
        return _facts(self._on.os.fstat(self._file(number)))

    def do_stat(self, path: str) -> object:
        return _facts(self._on.os.stat(self._at(path)))

    def do_list(self, path: str) -> object:
        with self._on.os.scandir(self._at(path)) as found:
            return sorted((each.name, each.is_file(), each.is_dir()) for each in found)

    def do_unlink(self, path: str) -> object:
        return self._on.os.unlink(self._at(path))

    def do_mkdir(self, path: str) -> object:
        return self._on.os.mkdir(self._at(path), 0o750)

    def do_makedirs(self, path: str) -> object:
        return self._on.os.makedirs(self._at(path), exist_ok=True)

    def do_rmdir(self, path: str) -> object:
        return self._on.os.rmdir(self._at(path))

    def do_rmtree(self, path: str) -> object:
        return self._on.shutil.rmtree(self._at(path))

    def do_rename(self, path: str, to: str) -> object:
        return self._on.os.replace(self._at(path), self._at(to))

    def do_link(self, path: str, to: str) -> object:
        return self._on.os.link(self._at(path), self._at(to))

    def do_glob(self, path: str) -> object:
        found = self._on.path(self._at(path)).glob("**/*")
        return sorted(str(each).removeprefix(self._on.top) for each in found)

    def do_file(self, path: str, form: str, text: str) -> object:
        data: Any = text.encode() if "b" in form else text
        with self._on.open(self._at(path), form, **({} if "b" in form else {"encoding": "utf-8"})) as file:
            told: list[object] = [file.tell()]
            if set(form) & set("wax+"):
                told += [file.write(data), file.flush(), file.tell()]
            if set(form) & set("r+"):
                told += [file.seek(0), file.read()]
            return told


def _facts(status: os.stat_result) -> tuple[int, int, int]:
    is_folder = stat.S_ISDIR(status.st_mode)
    return status.st_mode, 0 if is_folder else status.st_size, 0 if is_folder else status.st_nlink


def run_simulated(main: Callable[[], object], seed: int = 0, **more: Any) -> Scheduler:
    scheduler = Scheduler(seed, Greenlets(), RandomOrder(Random(seed), 0.5))
    provide_disk(scheduler, Disk(scheduler, **more))
    try:
        scheduler.run(main, Process("worker 0"))
    finally:
        scheduler.close()
    return scheduler


@given(st.lists(_OPERATIONS, max_size=25))
@settings(max_examples=250)
def test_files_in_memory_are_those_of_the_machine(operations: list[tuple[Any, ...]]) -> None:
    previous = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory() as folder:
            real = Doing(System(os, Path, shutil, builtins.open, folder))
            expected = [*map(real.told, operations), real.end()]
    finally:
        os.umask(previous)
    found: list[object] = []

    def main() -> None:
        modules = _STAND_INS.modules
        system = System(
            modules["os"], _STAND_INS.path, modules["shutil"], _STAND_INS.builtins["open"], f"{SHARED}/top"
        )
        system.os.mkdir(system.top)
        memory = Doing(system)
        found.extend([*map(memory.told, operations), memory.end()])

    run_simulated(main)
    assert found == expected
