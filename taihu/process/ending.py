"""The end of this process's program, told by whoever runs it where Python keeps the error that ends a program."""

from __future__ import annotations

import sys

__all__ = ["known_exit_code", "note_end"]


def note_end(ended: SystemExit | None = None) -> None:
    """The program ends by `ended`, or has come to its end: who takes leave behind it may say so.

    Python itself keeps errors alone, and no exit codes.
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
