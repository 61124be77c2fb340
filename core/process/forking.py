"""Commands in forks of this process, which has imported what they need.

Python, NumPy and numba take longer to import than a small run takes to train. A fork has them at once, and shares
their memory. It is made before anything but imports was done here: what other threads hold is lost in a fork, and a
library that has opened files would use the numbers of closed ones. From there on it lives, and ends, as a process of
its command line.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib
import os
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, NoReturn, Self

from taihu.core.system.clocks import monotonic, sleep
from taihu.core.system.memory import freeze_objects
from taihu.core.system.processes import TimeoutExpired, fork
from taihu.core.system.signals import (
    SIG_BLOCK,
    SIG_DFL,
    SIG_SETMASK,
    SIG_UNBLOCK,
    SIGINT,
    SIGKILL,
    SIGTERM,
    default_int_handler,
    pthread_sigmask,
    set_handler,
)
from taihu.core.system.threads import active_count, end_threads

_SIGNALS: Final = (SIGTERM, SIGINT)
_POLL_S = 0.005
_MOST_FILES = 1 << 16
_STDERR: Final = 2
# The interpreter's own, where what was written cannot be written out.
_NOT_FLUSHED: Final = 120
# Fields of /proc/self/stat, counted from the one after the program's name: where the command line lies.
_ARG_START, _ARG_END = 45, 46


@dataclass(frozen=True)
class Streams:
    """File descriptors that become a command's standard ones."""

    stdin: int
    stdout: int
    stderr: int


def can_fork(own_files: Collection[int] = ()) -> bool:
    """Whether a fork of this process has all that it needs: one thread of Python's, and no files of libraries.

    Threads that are not Python's are not seen from here. Of files, those with the numbers `own_files` may be open.
    """
    return active_count() == 1 and not files_of_libraries(own_files)


def files_of_libraries(own: Collection[int] = ()) -> list[int]:
    """The numbers of files that were opened in this process and are open, but for `own` and the standard streams.

    A file that is passed on to programs was passed on to this one: those of libraries are not. Empty where the system
    does not tell.
    """
    try:
        numbers = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    except OSError:
        return []
    return [number for number in numbers if number > _STDERR and number not in own and _is_private(number)]


def _is_private(number: int) -> bool:
    """Whether a file is open, and not for other programs."""
    try:
        return bool(fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC)
    except OSError:  # the folder that was listed
        return False


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
    before = pthread_sigmask(SIG_BLOCK, _SIGNALS)
    try:
        pid = fork()
        if pid == 0:
            live = partial(_live, module, arguments, streams, environment, folder, new_session=new_session)
            end_as_program(live)
    finally:
        pthread_sigmask(SIG_SETMASK, before)
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
        deadline = None if timeout is None else monotonic() + timeout
        while (code := self._wait(0 if deadline is None else os.WNOHANG)) is None:
            if deadline is not None and monotonic() > deadline:
                raise TimeoutExpired(str(self.pid), timeout or 0.0)
            sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def end_as_program(main: Callable[[], object]) -> NoReturn:
    """Run `main` in a fork as Python runs a program, and end as it does: what is not caught is told.

    Nothing of the process before the fork is freed or finalized: it may own files that are closed here.
    """
    code, is_interrupted = 1, False
    try:
        freeze_objects()
        for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            each.atexit = False
        code, is_interrupted = _code_of(main)
    finally:
        _end(code, is_interrupted=is_interrupted)


def _code_of(main: Callable[[], object]) -> tuple[int, bool]:
    """The exit code of a program that has come to its end, and whether it was Ctrl-C's."""
    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0, False
        sys.stderr.write(f"{ended.code}\n")
        return 1, False
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(type(error), error, error.__traceback__)
        return 1, isinstance(error, KeyboardInterrupt)
    return 0, False


def _end(code: int, *, is_interrupted: bool) -> NoReturn:
    """End this fork as the interpreter ends, in its order, but for taking modules apart.

    Libraries' hooks end the threads that are waited for; then come exit handlers, then what is not written out yet.
    Nothing but imports may have come before the fork: these handlers are those that modules, and the fork, asked for.
    """
    try:
        for step in (end_threads, atexit._run_exitfuncs):
            try:
                step()
            except BaseException:  # a signal's, as hooks tell their own
                sys.excepthook(*sys.exc_info())
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or _NOT_FLUSHED
        if is_interrupted:
            set_handler(SIGINT, SIG_DFL)
            os.kill(os.getpid(), SIGINT)
    finally:
        os._exit(code & 0xFF)


def _live(
    module: str,
    arguments: Sequence[str],
    streams: Streams,
    environment: Mapping[str, str],
    folder: Path | None,
    *,
    new_session: bool,
) -> None:
    """Become the process of a command line, and be it to the end."""
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


def _take_over(streams: Streams, environment: Mapping[str, str]) -> None:
    """Make `streams` the standard ones, close all other files, and take another environment."""
    # Those that Python chose for this process, whatever stands in the place of the stream now.
    encoding, errors = getattr(sys.__stdout__, "encoding", None), getattr(sys.__stdout__, "errors", None)
    # Numbers from 3 on, as the next lines replace 0, 1, 2.
    given = [fcntl.fcntl(each, fcntl.F_DUPFD, 3) for each in (streams.stdin, streams.stdout, streams.stderr)]
    for number, each in enumerate(given):
        os.dup2(each, number)
    close_files_from(3)
    lines = 1 if os.isatty(1) or "PYTHONUNBUFFERED" in environment else -1
    sys.stdin = os.fdopen(0, encoding=encoding, errors=errors, closefd=False)
    sys.stdout = os.fdopen(1, "w", lines, encoding=encoding, errors=errors, closefd=False)
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
    set_handler(SIGTERM, SIG_DFL)
    set_handler(SIGINT, default_int_handler)
    pthread_sigmask(SIG_UNBLOCK, _SIGNALS)


def _show_command_line(text: str) -> None:
    """Show `text` as this process's command line in `ps`, as far as there is room; only on Linux."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    except (OSError, ValueError, IndexError):
        return
    room = end - start
    words = os.fsencode(text).replace(b" ", b"\0")[: room - 1]
    ctypes.memmove(start, words.ljust(room, b"\0"), room)
