"""Processes on this machine: started, watched, and ended together."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from taihu.core.base.errors import RunError
from taihu.core.job.environment import without_settings
from taihu.core.process.entry import EXIT_INTERRUPTED
from taihu.core.process.forking import ForkedProcess, can_fork
from taihu.core.process.notices import read_notices
from taihu.core.process.programs.preparation import importing_much
from taihu.core.process.spare import SpareProcess
from taihu.core.security.token import TOKEN_VARIABLE, Token
from taihu.core.system.clocks import monotonic, sleep
from taihu.core.system.memory import freeze_objects
from taihu.core.system.polls import is_readable
from taihu.core.system.processes import PIPE, Popen
from taihu.core.system.signals import SIGTERM, Signals
from taihu.local.processes.causes import Ended, cause_of, end_in_words
from taihu.local.processes.stuck import LastingNames

_POLL_S = 0.05
_STDOUT, _STDERR = 1, 2
# What a daemon imports when its command runs.
_DAEMONS: Final = ("taihu.ps_server.command", "taihu.ps_server.daemon", "taihu.worker.command", "taihu.worker.daemon")

Process = Popen[bytes] | ForkedProcess


def prepare_to_fork(modules: Sequence[str] = _DAEMONS) -> bool:
    """Import what processes need, and let numba load what it needs for its first kernel.

    Returns whether a fork has all that it needs: a thread that one of the modules has started is in none.
    """
    with importing_much():
        # This brings NumPy, and SciPy where it compiles: OpenBLAS ends its threads before a fork, and is not counted.
        importlib.import_module("taihu.kernels.reduce").warm_up()
        before = _native_threads()
        for module in modules:
            importlib.import_module(module)
        after = _native_threads()
    freeze_objects()
    return before == after


def _native_threads() -> int:
    """The number of this process's threads, Python's and others; 0 where the system does not tell."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 0


def _threads_of_openblas() -> int:
    """The number of threads here where all but one are OpenBLAS's, which starts its own when they have work."""
    from threadpoolctl import threadpool_info  # noqa: PLC0415 - who starts no forks does not ask

    pools = [pool for pool in threadpool_info() if pool["internal_api"] == "openblas"]
    return 1 + sum(int(pool["num_threads"]) - 1 for pool in pools)


class DaemonFailedError(RunError):
    """The daemon `name` ended before its time, or `was_killed` by a signal; the message holds its last words."""

    def __init__(self, message: str, name: str, exit_code: int, *, was_killed: bool = False) -> None:
        super().__init__(message)
        self.name = name
        self.exit_code = exit_code
        self.was_killed = was_killed

    def with_remedy(self, remedy: str) -> DaemonFailedError:
        """The same error, and how to go on."""
        told = f"{self}; {remedy}" if remedy and remedy not in str(self) else str(self)
        return DaemonFailedError(told, self.name, self.exit_code, was_killed=self.was_killed)

    @property
    def end(self) -> str:
        """The end of the daemon in words, without the place of its log."""
        return str(self).partition("; log: ")[0]


def last_words_of(log: Path | None, *, is_script: bool) -> str:
    """The error, or else the last line, that a log ends with; lines of a script's own are none."""
    if log is None:
        return ""
    lines = log.read_text(errors="replace").strip().splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else lines[-1] if lines and not is_script else ""


def failure_of(failed: Collection[str], everybody: Sequence[Ended]) -> DaemonFailedError:
    """The error of a run of which processes with the names `failed` have ended before their time."""
    cause = cause_of([each for each in everybody if each.name in failed or each.is_stopped])
    message = end_in_words(cause, everybody)
    return DaemonFailedError(message, cause.name, max(1, cause.exit_code), was_killed=cause.exit_code < 0)


@dataclass
class _Daemon:
    name: str
    module: str
    arguments: list[str]
    process: Process
    log: Path | None
    log_file: IO[bytes]
    is_script: bool = False
    """Whether it is a script of the user's."""
    is_settled: bool = False
    """Whether nothing is said of its end any more."""
    given_up: str = ""
    """The reason for which it was killed from here, in words that follow its name."""

    @property
    def last_words(self) -> str:
        """The error, or else the last line, that its log ends with; a script's own lines are none."""
        return last_words_of(self.log, is_script=self.is_script)

    @property
    def end(self) -> Ended:
        """Its end, as far as it has come to it."""
        code = self.process.returncode
        is_stopped = code is None and _is_stopped(self.process.pid)
        return Ended(self.name, code or 0, self.last_words, self.log, self.given_up, is_stopped)


class LocalProcesses:
    """Daemons of one run, each with a log file in `log_dir`, if any; a context manager that leaves none behind.

    They do not see a terminal's Ctrl-C, and they end at once when their stdin closes, as it does when this process
    dies.

    Args:
        log_dir: of the logs; None where daemons write to this process's stderr.
        fork: the processes from this one, where that is possible, which imports first what they need: daemons, or
            these modules.
        lost_after_s: the time after which a daemon that a signal has stopped is ended.
        token: the run's, which daemons find in their environment.
    """

    def __init__(
        self,
        log_dir: Path | None,
        *,
        fork: bool | Sequence[str] = False,
        lost_after_s: float = math.inf,
        token: Token | None = None,
    ) -> None:
        self.log_dir = log_dir
        self._token = token
        self._stopped = LastingNames(lost_after_s)
        self._imported = _DAEMONS if isinstance(fork, bool) else fork
        self._forks = bool(fork)
        self._threads = 0
        self._daemons: list[_Daemon] = []
        self._spare: SpareProcess | None = None
        self._run_before: set[str] = set()

    def __enter__(self) -> Self:
        if self._forks:
            self._forks = prepare_to_fork(self._imported)
            self._threads = max(_native_threads(), _threads_of_openblas())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._spare is not None:
            self._spare.close()

    def stand_by(self) -> None:
        """From here on daemons are started again from a spare process, if they were forks of this one.

        Whoever watches a run uses gRPC, whose threads a fork waits for, and may never see.
        """
        if self.forks:
            self._spare = SpareProcess.stand_by()
        self._forks = False

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Process:
        """Start `python -m module arguments`; its stderr goes to `<name>.log`."""
        return self._start(name, module, list(arguments))

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str], *, is_shown: bool) -> None:
        """Start `python -m` with `command`, a module and its arguments, in another environment; or start it again.

        What it writes goes to `<name>.log`, or where this process's output goes if it `is_shown`.
        """
        module, *arguments = command
        forks = self.forks
        log = self.log_of(name)
        if name not in self._run_before:
            log.write_bytes(b"")
        self._run_before.add(name)
        log_file = log.open("ab")  # as others write to it, too
        stdout, stderr = (_STDOUT, _STDERR) if is_shown else (log_file.fileno(), log_file.fileno())
        process = self._launch(command, environment, stderr, stdout=stdout, forks=forks)
        self._daemons.append(_Daemon(name, module, arguments, process, log, log_file, is_script=True))

    def log_of(self, name: str) -> Path:
        """The log of a process; raises RunError where there are none."""
        if self.log_dir is None:
            raise RunError(f"{name} has no log of its own")
        return self.log_dir / f"{name.replace(' ', '-')}.log"

    def kill(self, name: str) -> None:
        """End a daemon at once, if it has not ended."""
        next(daemon for daemon in self._daemons if daemon.name == name).process.kill()

    def signal(self, name: str, number: Signals) -> None:
        """Send a daemon a signal, if it has not ended."""
        next(daemon for daemon in self._daemons if daemon.name == name).process.send_signal(number)

    def end_stopped(self) -> None:
        """End daemons that have been stopped for `lost_after_s`, at whatever point of their life: they are lost.

        It has to be called now and then.
        """
        stopped = {daemon.name: daemon for daemon in self._daemons if _is_stopped(daemon.process.pid)}
        for name in self._stopped.look(monotonic(), stopped):
            stopped[name].given_up = f"was stopped for {self._stopped.after_s:g} s, and ended"
            stopped[name].process.kill()

    def settle(self, name: str) -> None:
        """End a daemon, if it has not ended, and say nothing of that: it has done its part."""
        self.kill(name)
        next(daemon for daemon in self._daemons if daemon.name == name).is_settled = True

    def dismiss(self, name: str) -> None:
        """End a daemon at once, if it has not ended, and forget it."""
        former = next(daemon for daemon in self._daemons if daemon.name == name)
        former.process.kill()
        former.process.wait()
        self._daemons.remove(former)
        _close(former)

    def replace(self, name: str) -> None:
        """Start a daemon again that has ended, with the same arguments; its log goes on."""
        former = next(daemon for daemon in self._daemons if daemon.name == name)
        self._forks = False
        self._start(name, former.module, former.arguments)

    def _start(self, name: str, module: str, arguments: list[str]) -> Process:
        former = next((daemon for daemon in self._daemons if daemon.name == name), None)
        if former is not None:
            self._daemons.remove(former)
            _close(former)
        forks = self.forks
        log = None if self.log_dir is None else self.log_of(name)
        if log is None:
            log_file: IO[bytes] = os.fdopen(os.dup(_STDERR), "wb")
        else:
            log_file = log.open("wb" if former is None else "ab")
        command = [module, *arguments, "--supervisor", str(os.getpid())]
        process = self._launch(command, self.environment(), log_file.fileno(), forks=forks)
        self._daemons.append(_Daemon(name, module, arguments, process, log, log_file))
        return process

    def environment(self) -> dict[str, str]:
        """This process's environment without settings, and with the run's token."""
        secret = {} if self._token is None else {TOKEN_VARIABLE: self._token.reveal()}
        return {**without_settings(os.environ), **secret}

    @property
    def forks(self) -> bool:
        """Whether the next process would be a fork of this one: nothing but imports has come to this one since."""
        if not self._forks:
            return False
        own = [stream.fileno() for daemon in self._daemons for stream in _streams(daemon) if not stream.closed]
        return can_fork(own) and _native_threads() <= self._threads

    def _launch(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stderr: int,
        *,
        stdout: int | None = None,
        forks: bool,
    ) -> Process:
        """Start `python -m` with `command`; `stdout` None is a pipe, from which this process reads."""
        module, *arguments = command
        if self._spare is not None:
            with contextlib.suppress(OSError):  # it has been killed: it takes longer then
                return self._spare.start(module, arguments, stderr, environment, stdout=stdout)
        if forks:
            return ForkedProcess.start(module, arguments, stderr, environment, stdout=stdout)
        return Popen(
            [sys.executable, "-P", "-m", *command],
            stdin=PIPE,
            stdout=PIPE if stdout is None else stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )

    def start_listening(self, name: str, module: str, arguments: Sequence[str]) -> str:
        """Start a daemon and return the address that its first line of output tells.

        A daemon that replaces it listens there, too.
        """
        process = self.start(name, module, arguments)
        assert process.stdout is not None  # noqa: S101
        while not is_readable(process.stdout, _POLL_S):
            self.end_stopped()
        line = process.stdout.readline().decode()
        if not line.startswith("listening on "):
            process.wait()
            self.check()
            raise RunError(f"{name} did not say where it listens; see {self.log_dir}")
        address = line.removeprefix("listening on ").split(",")[0].strip()
        self._daemons[-1].arguments += ["--bind", address]
        return address

    def notices(self) -> list[str]:
        """Lines about what daemons cannot write, each with the daemon's name, that have come since the last call."""
        told = []
        for daemon in self._daemons:
            if (stream := daemon.process.stdout) is not None and not stream.closed:
                os.set_blocking(stream.fileno(), False)
                told += [f"{daemon.name}: {line}" for line in read_notices(stream)]
        return told

    def check(self, awaiting: Collection[str] = ()) -> bool:
        """Whether all daemons have ended: well, or interrupted. Nothing is said of the end of those in `awaiting`.

        Raises:
            DaemonFailedError: one ended otherwise; the message names it and holds its last words.
        """
        codes = [daemon.process.poll() for daemon in self._daemons]
        self._raise_for(0, EXIT_INTERRUPTED, None, apart_from=awaiting)
        return None not in codes and not awaiting

    @property
    def any_has_ended(self) -> bool:
        """Whether a daemon was seen to have ended well."""
        return any(daemon.process.returncode == 0 for daemon in self._daemons)

    @property
    def names(self) -> list[str]:
        """The names of all daemons; the first is that of the one that was started first, if it was not replaced."""
        return [daemon.name for daemon in self._daemons]

    @property
    def living(self) -> list[str]:
        """The names of daemons that were not seen to have ended."""
        return [daemon.name for daemon in self._daemons if daemon.process.returncode is None]

    @property
    def ended(self) -> list[Ended]:
        """The ends of all daemons that have ended by now."""
        return [daemon.end for daemon in self._daemons if daemon.process.poll() is not None]

    @property
    def interrupted(self) -> list[str]:
        """The names of daemons that were seen to have ended because they were asked to."""
        return [daemon.name for daemon in self._daemons if daemon.process.returncode == EXIT_INTERRUPTED]

    def raise_if_interrupted(self) -> None:
        """Raise DaemonFailedError if a daemon was interrupted, which is no failure where the run was stopped."""
        self._raise_for(0, None)

    def _raise_for(self, *accepted: int | None, apart_from: Collection[str] = ()) -> None:
        failed = [
            daemon
            for daemon in self._daemons
            if daemon.process.returncode not in accepted and daemon.name not in apart_from and not daemon.is_settled
        ]
        if failed:
            raise failure_of({daemon.name for daemon in failed}, [daemon.end for daemon in self._daemons])

    def wait_for_words(self, timeout_s: float) -> None:
        """Return when all have ended, or as scripts have said that others are to blame, or `timeout_s` has passed."""
        deadline = monotonic() + timeout_s
        while monotonic() < deadline and any(
            daemon.process.poll() is None and not (daemon.is_script and daemon.end.blames) for daemon in self._daemons
        ):
            sleep(_POLL_S)

    def wait(self, timeout_s: float) -> None:
        """Return when all daemons have ended or `timeout_s` has passed."""
        deadline = monotonic() + timeout_s
        while monotonic() < deadline and any(d.process.poll() is None for d in self._daemons):
            sleep(_POLL_S)

    def stop(self, grace_s: float = 8.0) -> None:
        """End what still runs: SIGTERM and a closed stdin, then after `grace_s` SIGKILL."""
        for daemon in self._daemons:
            if daemon.process.poll() is None:
                daemon.process.send_signal(SIGTERM)
                assert daemon.process.stdin is not None  # noqa: S101
                daemon.process.stdin.close()
        self.wait(grace_s)
        for daemon in self._daemons:
            if daemon.process.poll() is None:
                daemon.process.kill()
            daemon.process.wait()
            _close(daemon)


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; where the system does not tell, it is not known to be."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def _streams(daemon: _Daemon) -> Iterator[IO[bytes]]:
    """The files that this process has opened for it."""
    for stream in (daemon.process.stdin, daemon.process.stdout, daemon.log_file):
        if stream is not None:
            yield stream


def _close(daemon: _Daemon) -> None:
    for stream in _streams(daemon):
        with contextlib.suppress(OSError):
            stream.close()
