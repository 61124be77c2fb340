"""How every command ends: one line on stderr for what went wrong, and an exit code.

0 done, 1 the run failed, 2 bad usage or configuration, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import typer

from taihu.errors import RunError, TaihuError

__all__ = ["EXIT_INTERRUPTED", "InterruptedRunError", "raise_on_terminate", "run_app", "wait_for_termination"]

EXIT_INTERRUPTED = 130


class InterruptedRunError(RunError):
    """The process was asked to end by SIGTERM or Ctrl-C."""

    exit_code = EXIT_INTERRUPTED


def run_app(app: Callable[..., object], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line, by default with this process's arguments, and exit; `app` is Typer's app or command."""
    sys.exit(_exit_code(app, arguments))


def raise_on_terminate() -> None:
    """Turn SIGTERM and SIGINT into `InterruptedRunError` in the main thread, so that all is closed in order."""
    signal.signal(signal.SIGTERM, _raise_interrupted)
    signal.signal(signal.SIGINT, _raise_interrupted)


def wait_for_termination() -> None:
    """Return when the process is asked to end, which is then no failure; `raise_on_terminate` came before."""
    with suppress(InterruptedRunError):
        while True:
            signal.pause()


def _exit_code(app: Callable[..., object], arguments: Sequence[str] | None) -> int:
    try:
        result = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", EXIT_INTERRUPTED)
    except typer.TyperException as error:
        message = _usage_message(error)
        return _say(message, 2) if message else 2
    except TaihuError as error:
        return _say(str(error), error.exit_code)
    return result if isinstance(result, int) else 0


def _usage_message(error: typer.TyperException) -> str:
    """What is wrong with the command line, and where its help is; empty when that help has just been shown."""
    message = error.format_message().rstrip(".") if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    return f"{message}; see '{context.command_path} --help'" if message and context is not None else message


def _say(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)  # noqa: T201
    return code


def _raise_interrupted(number: int, frame: FrameType | None) -> None:
    raise InterruptedRunError(f"interrupted by {signal.Signals(number).name}")
