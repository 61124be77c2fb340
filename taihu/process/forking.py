"""Commands in forks of this process, which has imported what they need.

Python, NumPy and numba take longer to import than a small run takes to train. A fork has them at once, and shares
their memory. It is made before gRPC is used and while this is the only thread: what other threads hold is lost in a
fork. From there on it lives as a process that was started by its command line.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NoReturn, Self

__all__ = ["ForkedProcess", "Streams", "as_a_program", "can_fork", "close_files_from", "exit_code_of", "fork_command"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_POLL_S = 0.005
_MOST_FILES = 1 << 16
# Fields of /proc/self/stat, counted from the one after the program's name: where the command line lies.
_ARG_START, _ARG_END = 45, 46


@dataclass(frozen=True)
class Streams:
    """File descriptors that become a command's standard ones."""

    stdin: int
    stdout: int
    stderr: int


def can_fork() -> bool:
    """Whether a fork of this process has all that it needs: only the thread that forks is in it.

    Threads that are not Python's are not seen from here.
    """
    return threading.active_count() == 1


def fork_command(
    module: str,
    arguments: Sequence[str],
    streams: Streams,
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    new_session: bool = False,
) -> int:
    """Run the command of `module` in a fork as `python -P -m module arguments` would; returns its pid.

    No file but `streams` stays open in it. The module, of a package its `__main__`, has `run`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _live(module, arguments, streams, environment, folder, new_session=new_session)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


class ForkedProcess:
    """A child of this process that runs a command, and our ends of its streams; the verbs of `subprocess.Popen`.

    `returncode` is None until the child was seen to have ended; -N when signal N ended it.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    @classmethod
    def start(
        cls,
        module: str,
        arguments: Sequence[str],
        stderr: int,
        environment: Mapping[str, str],
        *,
        stdout: int | None = None,
    ) -> Self:
        """Fork a command, in a session of its own; stdin and, unless it is given, stdout are pipes to here."""
        read, stdin = os.pipe()
        ours, write = os.pipe() if stdout is None else (None, stdout)
        try:
            pid = fork_command(
                module, arguments, Streams(read, write, stderr), environment=environment, new_session=True
            )
        finally:
            os.close(read)
            if ours is not None:
                os.close(write)
        return cls(pid, os.fdopen(stdin, "wb"), None if ours is None else os.fdopen(ours, "rb"))

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when there is one.

        Raises:
            subprocess.TimeoutExpired: there was none after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._wait(0 if deadline is None else os.WNOHANG)) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def exit_code_of(ended: SystemExit) -> int:
    """The exit code that Python makes of it; words of it go to stderr."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    sys.stderr.write(f"{ended.code}\n")
    return 1


def as_a_program(main: Callable[[], None]) -> NoReturn:
    """Run `main` in a fork, and do at its end what the interpreter does at its own, exit handlers included.

    Nothing but imports may have come before the fork: what is done then is what modules, and `main`, have asked for.
    """
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = exit_code_of(ended)
    except BaseException:
        code = 1
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    raise SystemExit(code)


def _live(
    module: str,
    arguments: Sequence[str],
    streams: Streams,
    environment: Mapping[str, str],
    folder: Path | None,
    *,
    new_session: bool,
) -> NoReturn:
    """The whole life of the fork: nothing of what called `fork_command` goes on in it."""
    code = 1
    try:
        # What the process before the fork still held is never freed here: it may own files that are closed now.
        gc.freeze()
        _take_over(streams, environment)
        if new_session:
            os.setsid()
        if folder is not None:
            os.chdir(folder)
        main = importlib.import_module(module)
        if hasattr(main, "__path__"):
            main = importlib.import_module(f"{module}.__main__")
        sys.modules["__main__"] = main
        sys.argv = [str(main.__file__), *arguments]
        _show_command_line(f"python -P -m {module} {' '.join(arguments)}")
        _ready_for_signals()
        main.run()
        code = 0
    except SystemExit as ended:
        code = exit_code_of(ended)
    except BaseException:  # as the interpreter does at its top
        sys.excepthook(*sys.exc_info())
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    """Wait for other threads as the interpreter does at its end, and leave without taking everything apart."""
    try:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _take_over(streams: Streams, environment: Mapping[str, str]) -> None:
    """Make `streams` the standard ones, close all other files, and take another environment."""
    encoding = sys.stdout.encoding
    # Numbers from 3 on, as the next lines replace 0, 1, 2.
    given = [fcntl.fcntl(each, fcntl.F_DUPFD, 3) for each in (streams.stdin, streams.stdout, streams.stderr)]
    for number, each in enumerate(given):
        os.dup2(each, number)
    close_files_from(3)
    lines = 1 if os.isatty(1) or "PYTHONUNBUFFERED" in environment else -1
    sys.stdin = os.fdopen(0, encoding=encoding, closefd=False)
    sys.stdout = os.fdopen(1, "w", lines, encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)


def close_files_from(first: int) -> None:
    """Close every file with a number from `first` on.

    The limit on numbers is no bound: containers raise it to a thousand million, of which each would be tried.
    """
    try:
        numbers = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    except OSError:  # elsewhere than on Linux
        limit = os.sysconf("SC_OPEN_MAX")
        os.closerange(first, limit if 0 < limit < _MOST_FILES else _MOST_FILES)
        return
    for number in numbers:
        if number >= first:
            with suppress(OSError):  # the folder that was listed
                os.close(number)


def _ready_for_signals() -> None:
    """Handle signals as a new process does, whatever the process before the fork did."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _show_command_line(text: str) -> None:
    """Show `text` as this process's command line in `ps`, as far as there is room; only on Linux."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    except (OSError, ValueError, IndexError):
        return
    room = end - start
    words = text.encode().replace(b" ", b"\0")[: room - 1]
    ctypes.memmove(start, words.ljust(room, b"\0"), room)
