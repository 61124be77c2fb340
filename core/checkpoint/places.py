"""Places of checkpoints: folders that this machine sees, and folders of stores that fsspec knows, named by URLs.

Both have the few operations of `pathlib.Path` that checkpoints need, and those below, which differ. A store has no
folders that could be synchronized: a file is written under another name and moved when it is complete.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from taihu.core.base.errors import ConfigError, TaihuError
from taihu.core.base.whole_file import make_durably, synchronize
from taihu.core.base.words import one_line
from taihu.core.settings import Url, path_or_url

# Stores raise these without a number, by which OSError finds out what it is.
_NUMBERS: Final = ((FileNotFoundError, errno.ENOENT), (PermissionError, errno.EACCES))


@dataclass(frozen=True)
class RemotePath:
    """A file or folder of a store, as `pathlib.Path` is one of a file system.

    Every operation but those on names asks the store, and raises OSError for whatever goes wrong with it; one line,
    which names the place. Where the package that knows the store is missing, ConfigError says what to install.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The folder that it lies in."""
        return RemotePath(self.url.rstrip("/").rpartition("/")[0])

    def resolve(self) -> RemotePath:
        """The place itself: a URL is absolute."""
        return self

    absolute = resolve

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        return self._kind() is not None

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._kind() == "directory"

    def iterdir(self) -> Iterator[RemotePath]:
        """The files and folders in it."""
        with self._asking() as (store, path):
            store.invalidate_cache(path)
            names = [str(each).rstrip("/").rpartition("/")[2] for each in store.ls(path, detail=False)]
        return iter([self / name for name in names])

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make the folder, and those above it; nothing is said of one that is there."""
        del parents, exist_ok
        with self._asking() as (store, path):
            store.makedirs(path, exist_ok=True)

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self._asking() as (store, path):
            data: bytes = store.cat_file(path)
            return data

    def write_bytes(self, data: bytes) -> None:
        """Put `data` in the place of the file."""
        with self._asking() as (store, path):
            store.pipe_file(path, data)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file."""
        if not missing_ok or self.exists():
            with self._asking() as (store, path):
                store.rm_file(path)

    def copy_to(self, target: Path) -> None:
        """Copy the file into one of this machine."""
        with self._asking() as (store, path):
            store.get_file(path, str(target))

    def remove_all(self) -> None:
        """Remove the folder with all that is in it."""
        with self._asking() as (store, path):
            store.rm(path, recursive=True)

    @contextmanager
    def replaced(self, renames: Callable[[], None]) -> Iterator[BinaryIO]:
        """A file to write during the block, which is there as a whole when this ends; nothing of it stays else."""
        partial = self.parent / f".{self.name}.partial"
        with self._asking() as (store, path):
            _, aside = _store_of(partial.url)
            try:
                with store.open(aside, "wb") as file:
                    yield file
                renames()
                store.mv(aside, path)
            finally:
                with suppress(Exception):  # the store may be gone; what went wrong first is told
                    store.rm_file(aside)

    def _kind(self) -> str | None:
        with self._asking() as (store, path):
            store.invalidate_cache(path)
            try:
                return str(store.info(path)["type"])
            except FileNotFoundError:
                return None

    @contextmanager
    def _asking(self) -> Iterator[tuple[Any, str]]:
        """The store and the path in it; whatever it raises becomes an OSError."""
        store, path = _store_of(self.url)
        try:
            yield store, path
        except TaihuError:
            raise
        except OSError as error:
            usual = next((number for kind, number in _NUMBERS if isinstance(error, kind)), errno.EIO)
            raise OSError(error.errno or usual, _in_one_line(error), self.url) from None
        except Exception as error:
            # Stores raise what the libraries below them do: of HTTP, of clouds, of event loops.
            raise OSError(errno.EIO, _in_one_line(error), self.url) from None


Place = Path | RemotePath


def place_of(named: str | Path) -> Place:
    """The place that a path or a URL names.

    Raises:
        ConfigError: the URL has a password in it.
    """
    if isinstance(named, Path):
        return named
    try:
        found = path_or_url(named)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return RemotePath(str(found)) if isinstance(found, Url) else found


def inside(place: Place) -> list[Place]:
    """The files and folders in a folder, by name; OSError where that cannot be found out."""
    found: list[Place] = list(place.iterdir())
    return sorted(found, key=str)


def setting_of(place: Place) -> Path | Url:
    """The value of a setting that names a place."""
    return place if isinstance(place, Path) else Url(place.url)


def make_folder(folder: Place) -> None:
    """Make a folder, and those above it, which outlive a failure of the machine; OSError where it cannot be made."""
    if isinstance(folder, RemotePath):
        folder.mkdir(parents=True, exist_ok=True)
    else:
        make_durably(folder)


@contextmanager
def write_durably(place: Place, renames: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """A file to write during the block, which is on disk as `place` when this ends; nothing of it stays else.

    `renames` is called when all of it is there under another name.
    """
    if isinstance(place, RemotePath):
        with place.replaced(renames) as file:
            yield file
        return
    partial = place.with_name(f".{place.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        renames()
        partial.replace(place)
        synchronize(place.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def remove_folder(place: Place) -> None:
    """Remove a folder with all that is in it, as far as that is possible."""
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
        return
    with suppress(OSError):
        place.remove_all()


def copied(place: Place, folder: Callable[[], Path]) -> Path:
    """The file where this machine can map it: itself, or its copy in a folder; OSError where it cannot be read."""
    if isinstance(place, Path):
        return place
    copy = folder() / place.name
    if not copy.exists():
        partial = copy.with_name(f".{copy.name}.partial")
        place.copy_to(partial)
        partial.replace(copy)
    return copy


def _store_of(url: str) -> tuple[Any, str]:
    """The store that a URL is of, and the path in it.

    Raises:
        ConfigError: a package is missing, or nobody knows such URLs.
    """
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(f"{url}: needs the package fsspec; install it with: pip install 'taihu[remote]'") from None
    try:
        store, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {one_line(str(error))}") from None
    return store, str(path)


def _in_one_line(error: BaseException) -> str:
    """The words of an error of a store, without what may follow a path in URLs: signatures and keys."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    words = [word.partition("?")[0] if "://" in word else word for word in one_line(str(text)).split(" ")]
    return " ".join(words)
