"""A run whose processes have hosts of their own: network namespaces, each with memory that outlives its processes.

Whoever gets SIGKILL is started again on its host, as a launcher such as systemd does. Needs root and iproute2.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.recovery.hosts import Hosts

__all__ = ["OnHosts"]

_PORT: Final = 7072
_LOOK_S: Final = 0.05


class OnHosts:
    """A run of `flags` whose members each have a host; a context manager, which ends what still runs.

    Args:
        folder: where all hosts see the run's checkpoints, its run folder and its results.
        flags: of the job, as `taihu worker` takes them.
        members: `server 0`, `worker 0` and so on, the coordinator's first.
        rate_bits: of each host's link.
    """

    def __init__(self, folder: Path, flags: Sequence[str], members: Sequence[str], rate_bits: float) -> None:
        self._folder = folder
        self._flags = flags
        self._members = list(members)
        self._hosts = Hosts(len(members), rate_bits)
        self._stack = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._codes: dict[str, int] = {}
        self._closed = threading.Event()
        self._launcher = threading.Thread(target=self._launch_again, name="launcher")

    def __enter__(self) -> Self:
        self._stack.enter_context(self._hosts)
        for name in self._members:
            self._start(name)
        self._launcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._launcher.join()
        self._stack.close()

    def daemons(self) -> dict[str, int]:
        """The pids of those that run, by name."""
        return {name: process.pid for name, process in self._processes.items() if process.poll() is None}

    def poll(self) -> int | None:
        """The worst exit code, once all have ended; None before."""
        return max(self._codes.values()) if len(self._codes) == len(self._members) else None

    def wait(self) -> int:
        """Wait for the end; the worst exit code."""
        self._launcher.join()
        return max(self._codes.values(), default=1)

    def _launch_again(self) -> None:
        while len(self._codes) < len(self._members) and not self._closed.wait(_LOOK_S):
            for name in self._members:
                code = self._processes[name].poll()
                if code == -signal.SIGKILL:
                    self._start(name)
                elif code is not None:
                    self._codes[name] = code

    def _start(self, name: str) -> None:
        host = self._members.index(name)
        role, rank = name.split()
        words = [sys.executable, "-P", "-m", "taihu", role, "--rank", rank, *self._flags]
        words += ["--coordinator", f"{self._hosts.address(0)}:{_PORT}"]
        words += ["--set", f"checkpoint.dir={self._folder / 'kept'}"]
        if name == "worker 0":
            words += ["--run-dir", str(self._folder / "run"), "--json", str(self._folder / "results.json")]
        self._processes[name] = self._hosts.start(host, words)
