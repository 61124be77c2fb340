"""The one way in which files are written: whole or not at all, durable, and in one line what cannot be."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from taihu.core.base.errors import WriteError

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Who may not read a folder, and file systems that cannot, have to do without.
_CANNOT_SYNCHRONIZE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS})


def cannot_write(path: object, error: OSError) -> WriteError:
    """The error that names the file and the reason."""
    return WriteError(f"cannot write {path}: {error.strerror or error}")


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Raise WriteError, which names `path`, for what goes wrong with a disk during the block."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from None


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write to during the block, which takes the place of `path` when it ends; nothing of it stays else.

    From then on it outlives a failure of the machine; one before leaves the file that was there, or the new one.
    What is no regular file, as a pipe, and a file in a folder that nothing can be added to, are written in place.

    Raises:
        WriteError: it cannot be written.
    """
    with writing(path):
        whole = path.resolve() if path.is_symlink() else path
        if whole.exists() and not (whole.is_file() and os.access(whole.parent, os.W_OK)):
            yield whole
            return
        partial = whole.with_name(f".{whole.name}.partial")
        try:
            yield partial
            synchronize(partial)
            partial.replace(whole)
            synchronize(whole.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file.

    Raises:
        WriteError: it cannot be written.
    """
    with replaced(path) as partial:
        partial.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a file as UTF-8.

    Raises:
        WriteError: it cannot be written.
    """
    write_bytes(path, text.encode())


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, see `make_durably`.

    Raises:
        WriteError: it cannot be made.
    """
    with writing(folder):
        make_durably(folder, mode)


def make_durably(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, which outlive a failure of the machine; one may be there.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        # A folder that has something in it is durable, also where a process is killed in the middle of this.
        with suppress(FileExistsError):  # a file: the next line says so better
            make_durably(folder.parent)
        folder.mkdir(mode=mode, exist_ok=True)
    synchronize(folder.parent)


def synchronize(path: Path) -> None:
    """Have the content of a file, or the names in a folder, outlive a failure of the machine, where that can be had.

    Raises:
        OSError: the disk fails.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNCHRONIZE:
            raise


def reserve(descriptor: int, size_bytes: int) -> None:
    """Take room for so many bytes of an open file, where the file system can; OSError where there is not so much."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
