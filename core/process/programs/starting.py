"""Ctrl-C before a command has begun: while it is imported there is nothing to be closed, and one line to be said.

Nothing but what Python has at its start is imported here, as this comes before everything else: `signal` of the
library would bring `enum`, which takes longer than all that a command does before. What Python does by itself until
then, and with `site`, no command can change.
"""

import _signal as signal  # type: ignore[import-not-found]
import os

_EXIT_INTERRUPTED = 130


def end_at_interrupt() -> None:
    """End this process at once, and in one line, when Ctrl-C comes before `begun`; whoever ignores it still does.

    An exception would be told with the lines of whatever was being imported, or be swallowed there.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def begun() -> None:
    """Begin with what needs to be closed: Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: object) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(_EXIT_INTERRUPTED)
