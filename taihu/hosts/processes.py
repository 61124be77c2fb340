"""Processes on several hosts, watched and ended together as those of one machine are."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from taihu.core.base.whole_file import write_bytes
from taihu.core.process.entry import EXIT_INTERRUPTED
from taihu.core.system.clocks import monotonic, sleep
from taihu.core.system.signals import SIGKILL, Signals
from taihu.core.system.threads import Lock
from taihu.hosts.connection import Connection
from taihu.hosts.frames import FOLDER, SUPERVISOR
from taihu.hosts.placement import Placement
from taihu.local.processes.causes import Ended
from taihu.local.processes.processes import failure_of, last_words_of

_POLL_S: Final = 0.05
_PART_S: Final = 5.0


@dataclass
class _Member:
    """A process as it was told of last."""

    name: str
    host: int
    log: Path
    is_script: bool
    code: int | None = None
    given_up: str = ""
    is_settled: bool = False

    @property
    def end(self) -> Ended:
        words = last_words_of(self.log, is_script=self.is_script)
        return Ended(self.name, self.code or 0, words, self.log, self.given_up)


class HostedProcesses:
    """The processes of a run, each on the host that it has its place on; a context manager that leaves none behind.

    Their logs, and the files that they leave, come to this machine.

    Args:
        reach: makes a connection to the host of an index, where processes can be started.
        placement: who is where.
        logs: a folder here, for a log of each.
        folder: a folder here: its `job.toml` goes to the hosts, results and traces come from there.
        run_folder: made on the host of worker 0, which writes there; None for none.
        carried: variables of this process that go with it.
    """

    def __init__(
        self,
        reach: Callable[[int], Connection],
        placement: Placement,
        logs: Path,
        folder: Path,
        *,
        run_folder: Path | None,
        carried: Mapping[str, str],
    ) -> None:
        self._reach = reach
        self._placement = placement
        self._logs = logs
        self._folder = folder
        self._run_folder = run_folder
        self._carried = dict(carried)
        self._lock = Lock()
        self._members: dict[str, _Member] = {}
        self._run_before: set[str] = set()
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        for index in range(len(self._placement.hosts)):
            self._connect(index)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def names(self) -> list[str]:
        """The names of all processes."""
        return list(self._members)

    @property
    def living(self) -> list[str]:
        """The names of those that are not known to have ended."""
        return [each.name for each in self._members.values() if each.code is None]

    @property
    def any_has_ended(self) -> bool:
        """Whether one has ended well."""
        return any(each.code == 0 for each in self._members.values())

    def log_of(self, name: str) -> Path:
        """The log of a process here."""
        return self._logs / f"{name.replace(' ', '-')}.log"

    def environment(self) -> dict[str, str]:
        """The variables that go with processes; the run's token is on the hosts."""
        return dict(self._carried)

    def start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        """Start a daemon."""
        self._begin(name, is_script=False).order("start", name=name, module=module, arguments=self._there(arguments))

    def start_listening(self, name: str, module: str, arguments: Sequence[str]) -> str:
        """Start a daemon and return its address; raises RunError where it does not say it."""
        connection = self._begin(name, is_script=False)
        return str(connection.ask("listen", name=name, module=module, arguments=self._there(arguments)))

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str], *, is_shown: bool) -> None:
        """Start a module, which ends with whoever starts it, in an environment."""
        words = dict(zip(environment, self._there([*environment.values()]), strict=True))
        is_first = name == "worker 0" and self._run_folder is not None
        self._begin(name, is_script=True).order(
            "run",
            name=name,
            command=self._there([SUPERVISOR if word == str(os.getpid()) else word for word in command]),
            environment=words,
            folder=str(self._run_folder) if is_first else None,
            is_shown=is_shown,
        )

    def stand_by(self) -> None:
        """Do nothing: processes are started again as they were at first."""

    def end_stopped(self) -> None:
        """Do nothing: each host does so itself."""

    def settle(self, name: str) -> None:
        """End a process that has done its part."""
        self._members[name].is_settled = True
        self._of(name).order("settle", name=name)

    def dismiss(self, name: str) -> None:
        """End a process, and forget it."""
        self._of(name).ask("dismiss", name=name) if not self._of(name).is_over else None
        del self._members[name]

    def signal(self, name: str, number: Signals) -> None:
        """Send a signal to a process, if it has not ended."""
        self._of(name).order("signal", name=name, number=int(number))

    def check(self) -> bool:
        """Whether all have ended: well, or interrupted.

        Raises:
            DaemonFailedError: one ended otherwise; the message names it and holds its last words.
        """
        with self._lock:
            members = list(self._members.values())
            codes = [each.code for each in members]
            good = (0, EXIT_INTERRUPTED, None)
            failed = {each.name for each in members if each.code not in good and not each.is_settled}
            if failed:
                raise failure_of(failed, [each.end for each in members])
        return None not in codes

    def wait(self, timeout_s: float) -> None:
        """Return when all have ended or `timeout_s` has passed."""
        self._wait_while(timeout_s, lambda each: each.code is None)

    def wait_for_words(self, timeout_s: float) -> None:
        """Return when all have ended, or have said that others are to blame, or `timeout_s` has passed."""
        self._wait_while(timeout_s, lambda each: each.code is None and not (each.is_script and each.end.blames))

    def stop(self, grace_s: float = 8.0) -> None:
        """End what still runs, on all hosts at once: SIGTERM, after `grace_s` SIGKILL; and part from the hosts."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.order("stop", grace_s=grace_s)
        until_s = monotonic() + grace_s + _PART_S
        while monotonic() < until_s and not all(connection.is_over for connection in connections):
            sleep(_POLL_S)
        for connection in connections:
            connection.close(0.0)

    def logged(self, name: str, piece: bytes) -> None:
        """Add to the log of a process."""
        with self._lock, self.log_of(name).open("ab") as log:
            log.write(piece)

    def left(self, file: str, content: bytes) -> None:
        """Keep a file that a process has left."""
        with self._lock:
            write_bytes(self._folder / Path(file).name, content)

    def ended(self, name: str, code: int, given_up: str) -> None:
        """Note the end of a process."""
        with self._lock:
            if (member := self._members.get(name)) is not None:
                member.code, member.given_up = code, given_up

    def lost(self, host: str, words: str) -> None:
        """Count all processes of a host as killed, which end with its connection."""
        with self._lock:
            for each in self._members.values():
                if self._placement.hosts[each.host].name == host and each.code is None:
                    each.code, each.given_up = -SIGKILL, f"is lost with its host {host}: {words}"

    def _begin(self, name: str, *, is_script: bool) -> Connection:
        """A process is about to be started: its log is there, and its host has the job."""
        host, log = self._placement.host_of(name), self.log_of(name)
        connection = self._connect(host)
        if name not in self._run_before:
            log.write_bytes(b"")
        self._run_before.add(name)
        connection.order("file", name="job.toml", text=(self._folder / "job.toml").read_text())
        with self._lock:
            self._members[name] = _Member(name, host, log, is_script)
        return connection

    def _connect(self, host: int) -> Connection:
        """The connection to a host; another one where that has ended."""
        connection = self._connections.get(host)
        if connection is None or connection.is_over:
            if connection is not None:
                connection.close(0.0)
            connection = self._connections[host] = self._reach(host)
            connection.listen(self)
        return connection

    def _of(self, name: str) -> Connection:
        return self._connections[self._members[name].host]

    def _there(self, words: Collection[str]) -> list[str]:
        return [word.replace(str(self._folder), FOLDER) for word in words]

    def _wait_while(self, timeout_s: float, goes_on: Callable[[_Member], Any]) -> None:
        until_s = monotonic() + timeout_s
        while monotonic() < until_s and any(goes_on(each) for each in list(self._members.values())):
            sleep(_POLL_S)
