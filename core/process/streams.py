"""Standard streams that end no run: one may be closed, its disk full, its reader gone.

A program that writes results there ends with an error, as other tools do. A run goes on without: it outlives the
terminal, pipe or disk that it told its progress.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from taihu.core.base.errors import WriteError
from taihu.core.system.polls import is_writable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAMES: Final = ("standard input", "standard output", "standard error")
_STDOUT, _STDERR = 1, 2


class ReaderGoneError(WriteError):
    """Nobody reads standard output any more: the process ends as others do then, without a word."""

    exit_code = 141  # what shells tell of a program that SIGPIPE has ended


class _Output(io.FileIO):
    """Standard output or error.

    The first failure is remembered, and raised unless the process outlives it; nothing is written behind it.
    """

    def __init__(self, number: int, *, is_closed: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.lost: WriteError | None = None
        self.outlived = number == _STDERR
        self._is_told = number == _STDOUT and not is_closed
        self._number = number
        if is_closed:
            self.lost = WriteError(f"cannot write {_NAMES[number]}: it is closed")

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of it, or none."""
        view = memoryview(data).cast("B")
        if self.lost is None:
            try:
                self._write_all(view)
            except OSError as error:
                self._fail(error)
        if self.lost is not None and not self.outlived:
            self.outlived = True  # what is left in buffers vanishes in silence
            raise self.lost
        return len(view)

    def _write_all(self, view: memoryview) -> None:
        while view:
            written = super().write(view)
            if written is None:  # another program has made the terminal a file that does not wait
                is_writable(self._number)
            view = view[written or 0 :]

    def _fail(self, error: OSError) -> None:
        if self._number == _STDERR and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return  # there may be room later
        gone = error.errno == errno.EPIPE
        reason = "its reader has gone" if gone else error.strerror or str(error)
        self.lost = (ReaderGoneError if gone else WriteError)(f"cannot write {_NAMES[self._number]}: {reason}")
        if self.outlived and self._is_told:
            print(f"warning: {self.lost}; the run goes on without it", file=sys.stderr)  # noqa: T201


def open_streams() -> None:
    """Put careful streams in the places of the interpreter's; files that are closed become such that hold nothing.

    Comes before any file is opened: it would have the number of a standard one, and get what is written there. A
    stream that a caller of `main` has put in the place of standard output stays.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as the process does
    if sys.stdout is not sys.__stdout__:
        return
    known = sys.stdout or sys.stderr
    encoding = "utf-8" if known is None else known.encoding
    errors = getattr(sys.stdout, "errors", None) or "strict"
    take_streams(encoding, errors, unbuffered=getattr(sys.stdout, "write_through", False), closed=closed)


def take_streams(encoding: str, errors: str = "strict", *, unbuffered: bool, closed: list[int] | None = None) -> None:
    """Make files 1 and 2 standard output and error."""
    lines = os.isatty(_STDOUT) or unbuffered
    closed = closed or []
    out = io.BufferedWriter(_Output(_STDOUT, is_closed=_STDOUT in closed))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(out, encoding, errors, line_buffering=lines)  # type: ignore[misc]
    told = io.BufferedWriter(_Output(_STDERR, is_closed=_STDERR in closed))
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc]
        told, encoding, "backslashreplace", line_buffering=True
    )


def outlive_output() -> None:
    """Let this process go on where standard output cannot be written; that is said once on standard error."""
    raw = _raw_output()
    if raw is not None:
        raw.outlived = True


def output_lost() -> WriteError | None:
    """The failure of standard output, of a process that outlives it; None where there was none."""
    raw = _raw_output()
    return None if raw is None else raw.lost


def _raw_output() -> _Output | None:
    """Standard output, where it was taken by `take_streams`."""
    stream: TextIO | None = sys.__stdout__
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Output) else None


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
