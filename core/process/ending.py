"""The end of this process's program, told by whoever runs it: its exit code, and the error that ends it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from taihu.core.base.errors import TaihuError
from taihu.core.base.words import blamed, one_line

EXIT_BEGINS_AGAIN: Final = 75
"""The exit code of a worker that has lost others, and can go on with new ones as a new process alone."""

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
"""A function that Python calls with an error that ends a program, as `sys.excepthook`."""


def log_of_script(environment: Mapping[str, str]) -> Path | None:
    """The log of this script's process, where whoever has started it keeps one."""
    log = environment.get("TAIHU_LOG")
    return None if log is None else Path(log)


def note_end(ended: SystemExit | None = None) -> None:
    """The program ends by `ended`, or has come to its end: who takes leave behind it may say so.

    It is kept where Python keeps the error that ends a program; of exit codes it says nothing.
    """
    sys.last_value = SystemExit(0) if ended is None else ended


def known_exit_code() -> int | None:
    """The exit code that the program ends with; None where nobody has told it."""
    ended = getattr(sys, "last_value", None)
    if not isinstance(ended, SystemExit):
        return None
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    return 1


def words_of_end() -> str:
    """The error, or the exit code other than 0, that the program ends with; "" where none is known."""
    error, code = getattr(sys, "last_value", None), known_exit_code()
    if error is None or code == 0:
        return ""
    return f"exit code {code}" if code is not None else repr(error)


def is_due_to_others_than(rank: int, error: BaseException) -> bool:
    """Whether an error that ends worker `rank` says that another member is to blame."""
    is_ours = isinstance(error, TaihuError) or type(error).__name__ == "DistBackendError"
    return is_ours and blamed(str(error)) not in (None, f"worker {rank}")


def errors_to_log(log: Path, rank: int) -> ExceptHook:
    """A hook that writes errors which end worker `rank` to its `log`; to stderr, too, unless others have caused them.

    The last line is the error alone, for who looks for causes.
    """

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        words = str(error) if isinstance(error, TaihuError) else f"{kind.__name__}: {error}"
        with suppress(OSError), log.open("a") as file:  # a disk that is full
            file.write("".join(traceback.format_exception(kind, error, trace)))
            file.write(f"error: {one_line(words)}\n")
        is_told_elsewhere = is_due_to_others_than(rank, error) or isinstance(error, KeyboardInterrupt)
        if not is_told_elsewhere and not _is_stderr(log):
            sys.__excepthook__(kind, error, trace)

    return told


def tell(line: str, log: Path | None) -> None:
    """Write a line to `log`, or to stderr where there is none."""
    if log is None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201
        return
    with suppress(OSError), log.open("a") as file:
        file.write(f"{line}\n")


def _is_stderr(log: Path) -> bool:
    try:
        return os.path.samestat(log.stat(), os.fstat(2))
    except OSError:
        return False
