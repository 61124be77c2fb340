"""A file without a name for activations that leave memory between forward and backward."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path

import numpy as np

from taihu.core.base.errors import RunError
from taihu.worker.engine.base.layer import Array


class TemporaryFile:
    """A file in the folder for temporary files, closed with the object; `remedy` is a setting that needs none.

    Raises:
        RunError: the file cannot be made, written or read.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        try:
            descriptor, name = tempfile.mkstemp(prefix="taihu-")
        except OSError as error:
            raise self._cannot("make", error) from error
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        Path(name).unlink()

    def write(self, offset: int, values: Array) -> None:
        """Write a C-contiguous array, behind or over what is there."""
        rest = values.reshape(-1).view(np.uint8).data
        while rest:
            try:
                written = os.pwrite(self._descriptor, rest, offset)
            except OSError as error:
                raise self._cannot("write", error) from error
            rest, offset = rest[written:], offset + written

    def read(self, offset: int, values: Array) -> None:
        """Fill a C-contiguous array."""
        rest = values.reshape(-1).view(np.uint8).data
        while rest:
            try:
                count = os.preadv(self._descriptor, [rest], offset)
            except OSError as error:
                raise self._cannot("read", error) from error
            if not count:
                raise RunError("the temporary file of activations is shorter than what was written; is the disk ok?")
            rest, offset = rest[count:], offset + count

    def _cannot(self, what: str, error: OSError) -> RunError:
        return RunError(
            f"cannot {what} the temporary file of activations in {_folder()}: {error.strerror}; set TMPDIR to a "
            f"folder with more room, or {self._remedy}"
        )


def _folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "any of the usual folders"
