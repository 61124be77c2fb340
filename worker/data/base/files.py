"""Reading the files of a data set so that whatever is wrong with one is said in one line."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from taihu.core.base.errors import DataError


def exists(path: Path) -> bool:
    """Whether `path` exists; unlike `Path.exists` this is False, no exception, in a folder one may not search."""
    return os.access(path, os.F_OK)


def check_readable(path: Path, remedy: str) -> None:
    """Check that `path` is a file that this process may read.

    Raises:
        DataError: it is not.
    """
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unread(path, error, remedy) from None


def read_file(path: Path, remedy: str) -> bytes:
    """Return the bytes of `path`, decompressed when its name ends in `.gz`.

    Raises:
        DataError: the file is missing, cannot be read, or is not valid gzip.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unread(path, error, remedy) from None
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: corrupt gzip ({error}); {remedy}") from None


def check_size(path: Path, seen: int, expected: int, meaning: str, remedy: str) -> None:
    """Check that `path` holds `expected` bytes after decompression.

    Raises:
        DataError: it holds fewer or more.
    """
    if seen != expected:
        fault = "truncated" if seen < expected else "too long"
        raise DataError(f"{path}: {fault}: expected {expected} bytes ({meaning}), found {seen}; {remedy}")


def _unread(path: Path, error: OSError, remedy: str) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: not found; {remedy}")
    return DataError(f"{path}: cannot be read ({error.strerror}); {remedy}")
