"""The exit code of a program that `sys.exit`, `exit` or `quit` ends, known before its process ends.

Python tells it to nobody: what hooks and handlers see is the same for every code. A program may catch SystemExit,
and then go on, so what was asked for is not yet what happens. An exception that nobody caught is dropped by the
interpreter itself, when no function of the program runs any more: whatever hangs on it learns so.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

from taihu.core.process.ending import note_end
from taihu.core.system.threads import current_thread, main_thread

_NAMED: Final = ((sys, "exit"), (builtins, "exit"), (builtins, "quit"))


def note_exit_codes() -> None:
    """From now on note the end of this program (`note_end`) where one of these functions leads to it."""
    for place, name in _NAMED:
        function = getattr(place, name, None)
        if function is not None and not isinstance(function, _Noting):
            setattr(place, name, _Noting(function))


class _Noting:
    """A function that raises SystemExit, and notes the end where that is not caught."""

    def __init__(self, function: Callable[..., NoReturn]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **named: Any) -> NoReturn:
        try:
            self._function(*arguments, **named)
        except SystemExit as ended:
            ended.taihu_end = _End(ended.code)  # type: ignore[attr-defined]
            raise

    def __repr__(self) -> str:
        return repr(self._function)


class _End:
    """Hangs on an exception that is to end the program with `code`, and goes with it."""

    def __init__(self, code: Any) -> None:
        self._code = code

    def __del__(self) -> None:
        try:
            is_caught = sys._getframe(1) is not None
        except ValueError:
            is_caught = False
        if not is_caught and current_thread() is main_thread():
            note_end(SystemExit(self._code))
