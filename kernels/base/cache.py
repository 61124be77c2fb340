"""Compiled kernels on disk: damage is found before anything is loaded, and a disk that fails ends nothing.

numba keeps the machine code of a function in a file, and an index of these files beside it, both pickled. It
unpickles whatever is there: after a file was cut off, or a bit of it changed, every command would end. Here each file
begins with its version and its checksum. A file that is not what was written is as good as missing: its kernel is
compiled, and the file written anew.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numba
from numba.core import config, serialize

_HEADER: Final = f"taihu kernels 1, numba {numba.__version__}\n".encode()
_CHECKSUM_BYTES: Final = 4


class CheckedFiles:
    """The index and the machine code of one kernel, in files that show that they are whole.

    It takes the place of numba's `IndexDataCacheFile`.

    Args:
        folder: of the files.
        name: that all of them begin with.
        source_stamp: of the sources that the machine code is made of; that of others is not loaded.
    """

    def __init__(self, folder: Path, name: str, source_stamp: object) -> None:
        self.source_stamp = source_stamp
        self._folder = folder
        # Other names than numba's own: neither reads what the other wrote.
        self._index = folder / f"{name}.checked.nbi"
        self._name = name

    def overloads(self) -> dict[Any, str]:
        """Names of files by what they hold the machine code for."""
        stamp, overloads = _read(self._index) or (None, {})
        return overloads if stamp == self.source_stamp else {}

    def load(self, key: object) -> Any:
        """The machine code for `key`; None where there is none that is whole."""
        name = self.overloads().get(key)
        return None if name is None else _read(self._folder / name)

    def save(self, key: object, data: object) -> None:
        """Write the machine code for `key`; OSError where that cannot be done."""
        overloads = self.overloads()
        if key not in overloads:
            names = (f"{self._name}.checked.{number}.nbc" for number in itertools.count(1))
            overloads[key] = next(name for name in names if name not in overloads.values())
            _write(self._index, (self.source_stamp, overloads))
        _write(self._folder / overloads[key], data)

    def flush(self) -> None:
        """Forget all."""
        _write(self._index, (self.source_stamp, {}))


def _write(path: Path, content: object) -> None:
    """Let the file appear whole; of two processes that write it, either one's is there."""
    untyped: Any = serialize
    pickled = untyped.dumps(content)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(_HEADER + _checksum(pickled) + pickled)
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(path: Path) -> Any:
    """The content of a file; None where there is none that is whole, and of this version."""
    try:
        written = path.read_bytes()
    except OSError:
        return None
    start = len(_HEADER) + _CHECKSUM_BYTES
    pickled = memoryview(written)[start:]
    if not written.startswith(_HEADER) or written[len(_HEADER) : start] != _checksum(pickled):
        return None
    try:
        # Code that this user, or who installed taihu, has compiled here; the checksum is of what was written.
        return pickle.loads(pickled)  # noqa: S301
    except (ImportError, AttributeError):  # it is made of modules that are called otherwise now
        return None


def _checksum(data: bytes | memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")


def enable_cache(dispatcher: Any, sources: object) -> bool:
    """Let `dispatcher` keep its machine code where numba finds a folder, or else in a temporary one of this user.

    `sources` is a stamp of all that the machine code may be made of beside the file of `dispatcher`.

    Returns whether it has one: without, every process compiles it again.
    """
    try:
        dispatcher.enable_caching()
    except RuntimeError:  # neither beside the source nor in the user's own folders
        folder = _temporary_folder()
        if folder is None:
            _say_once("compiled kernels cannot be kept: no folder can be written; set NUMBA_CACHE_DIR to one")
            return False
        with _cache_in(folder):
            dispatcher.enable_caching()
    cache = dispatcher._cache
    stamp = cache._impl.locator.get_source_stamp(), sources
    cache._cache_file = CheckedFiles(Path(cache.cache_path), cache._impl.filename_base, stamp)
    save = cache.save_overload

    def save_if_possible(signature: object, compiled: object) -> None:
        with _said(Path(cache.cache_path)):  # the folder, too, may have to be made
            save(signature, compiled)

    cache.save_overload = save_if_possible
    return True


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """During the block, numba keeps what it compiles in `folder`."""
    untyped: Any = config
    before, untyped.CACHE_DIR = untyped.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        untyped.CACHE_DIR = before


@lru_cache(maxsize=1)
def _temporary_folder() -> Path | None:
    """A folder that nobody but this user can write to; None where there can be none."""
    try:
        folder = Path(tempfile.gettempdir()) / f"taihu-kernels-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return folder if is_own and os.access(folder, os.W_OK) else None


@contextlib.contextmanager
def _said(folder: Path) -> Iterator[None]:
    """Go on where the block cannot write, and say so once."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        _say_once(f"compiled kernels cannot be kept in {folder}: {reason}; set NUMBA_CACHE_DIR to another folder")


@lru_cache(maxsize=64)
def _say_once(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"warning: {text}", file=sys.stderr, flush=True)  # noqa: T201
