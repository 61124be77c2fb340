"""The end of every command: one line on stderr for what went wrong, and an exit code.

0 done, 1 the run failed, 2 bad usage or configuration, 130 interrupted by Ctrl-C or SIGTERM: every process of a run
that was stopped before its last step, whichever of them was asked to; 141 where standard output has no reader any
more. What runs programs of others, `taihu run`, says which signal it was, as shells do: 143 for SIGTERM.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

import typer

from taihu.core.base.errors import RunError, TaihuError
from taihu.core.base.words import one_line
from taihu.core.process.streams import ReaderGoneError
from taihu.core.process.unheard import wake_for_signals
from taihu.core.system.clocks import monotonic
from taihu.core.system.queues import SimpleQueue
from taihu.core.system.signals import SIG_DFL, SIGINT, SIGTERM, Signals, set_handler

EXIT_INTERRUPTED = 130
_NUMBERS: Final = (SIGTERM, SIGINT)
_LACKING: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
    }
)
# Some programs send the same signal twice, to a process and to its group.
_ECHO_S = 0.2


class InterruptedRunError(RunError):
    """The process was asked to end by SIGTERM or Ctrl-C."""

    exit_code = EXIT_INTERRUPTED


class LeavingError(InterruptedRunError):
    """The process was asked to end alone: the run goes on with another one in its place."""


class Interrupts:
    """SIGTERM and SIGINT of this process, once installed.

    The first one is offered to who can end in order. If nobody takes it, and from the second one on,
    `InterruptedRunError` is raised in the main thread. `reason` is empty until one was taken; `number` is that of the
    last one. With `tells_signal` exit codes are 128 and the number.
    """

    def __init__(self, *, tells_signal: bool = False) -> None:
        self.reason = ""
        self.number = SIGINT
        self._tells_signal = tells_signal
        self.leaves = False
        self._leaves_by: Sequence[int] = (SIGTERM,)
        self._raised = ""
        self._take: Callable[[str], bool] | None = None
        self._taken_s = -_ECHO_S
        self._ignores = False
        self._ends: SimpleQueue[int] | None = None
        self._pid = os.getpid()

    def install(self, *, leaves: bool = False, leaves_by: Sequence[int] = (SIGTERM,)) -> None:
        """Handle both signals from now on; called by the main thread.

        Where it `leaves` by a signal, that asks for the end of this process alone: it is a `LeavingError` then.
        Children that the user's code forks are ended by both, as those of any program are.
        """
        self.leaves, self._leaves_by = leaves, leaves_by
        for number in _NUMBERS:
            set_handler(number, self.arrived)

    def are_heard(self) -> None:
        """Have the main thread, which calls this, hear every signal, although it waits for others without end."""
        wake_for_signals(_NUMBERS)

    @contextmanager
    def offered_to(self, take: Callable[[str], bool]) -> Iterator[None]:
        """During the block, `take(reason)` is called with the first signal, and says whether it was taken.

        As it is called by a signal handler, it may not wait for any lock.

        Raises:
            InterruptedRunError: an earlier signal had raised it, and other code has swallowed that: what compiles and
                what imports may do so.
        """
        if self._raised:
            raise self.error(self._raised)
        self._take = take
        try:
            yield
        finally:
            self._take = None

    def ignore(self) -> None:
        """Take no heed of signals: what is left to do is done in a moment, and is not to be broken off."""
        self._ignores = True

    def are_no_error(self) -> None:
        """Have a signal raise nothing from now on: nothing is left to do but to wait for it by `await_end`."""
        self._ends = SimpleQueue()

    def await_end(self) -> None:
        """Return when a signal has arrived since `are_no_error`, which comes before this."""
        if self._ends is None:
            raise RuntimeError("signals are errors: are_no_error comes before await_end")
        self._ends.get()

    def end_at_once(self) -> None:
        """Interrupt the main thread as a second signal does; may be called by any thread."""
        self._take = None
        self._taken_s = -_ECHO_S
        os.kill(os.getpid(), SIGTERM)

    def arrived(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal; the same one within a moment of the first is its echo."""
        if os.getpid() != self._pid:
            set_handler(number, SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.number = Signals(number)
        reason = f"interrupted by {self.number.name}"
        self.leaves = self.leaves and number in self._leaves_by
        if self._ends is not None:
            self._ends.put(number)  # a handler may do that: it waits for no lock
            return
        if self._ignores or (reason == self.reason and monotonic() - self._taken_s < _ECHO_S):
            return
        if not self.reason and self._take is not None and self._take(reason):
            self.reason = reason
            self._taken_s = monotonic()
            return
        self._raised = reason
        raise self.error(reason)

    def error(self, reason: str) -> InterruptedRunError:
        """The error that ends this process."""
        error = LeavingError(reason) if self.leaves else InterruptedRunError(reason)
        if self._tells_signal:
            error.exit_code = 128 + self.number
        return error


def run_app(app: Callable[..., object], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line, by default with this process's arguments, and exit; `app` is Typer's app or command."""
    sys.exit(_exit_code(app, arguments))


def raise_on_terminate() -> None:
    """Turn SIGTERM and SIGINT into `InterruptedRunError` in the main thread, so that all is closed in order."""
    Interrupts().install()


def _exit_code(app: Callable[..., object], arguments: Sequence[str] | None) -> int:
    try:
        result = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", EXIT_INTERRUPTED)
    except typer.TyperException as error:
        message = _usage_message(error)
        return _say(message, 2) if message else 2
    except ReaderGoneError as error:
        return error.exit_code
    except TaihuError as error:
        return _say(str(error), error.exit_code)
    except (OSError, MemoryError) as error:
        if (words := _lacking(error)) is None:
            raise
        return _say(words, 1)
    return result if isinstance(result, int) else 0


def _lacking(error: OSError | MemoryError) -> str | None:
    """The words for what the machine has not enough of, or does not let this process have; None for another error."""
    if isinstance(error, MemoryError):
        return "not enough memory for this process; ulimit -v and free tell how much there is"
    if error.errno is None and "shared object" in str(error):
        return f"{str(error).partition('. ')[0]}; is there enough memory? ulimit -v tells how much there is"
    if error.errno not in _LACKING:
        return None
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror or error}"


def _usage_message(error: typer.TyperException) -> str:
    """The mistake in a command line, and the place of its help; empty when that help has just been shown."""
    message = error.format_message().rstrip(".") if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    return f"{message}; see '{context.command_path} --help'" if message and context is not None else message


def _say(message: str, code: int) -> int:
    print(f"{'error: ' if code else ''}{one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201
    return code
