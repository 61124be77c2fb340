"""taihu's commands as processes of their own: forks of one that has imported everything, or started as by hand."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO

from taihu.core.job.environment import without_settings

__all__ = ["PATIENCE_S", "Command", "end_fork_server", "run_command"]

PATIENCE_S = 600.0
"""The time after which a test says that what it waits for does not come: nothing depends on it, and a busy machine
takes twenty times as long as a quiet one."""

_SERVER = Path(__file__).with_name("fork_server.py")
# A process looks at these before its first line of Python, or while it imports NumPy, numba and gRPC.
_SEEN_AT_THE_START = ("PYTHON", "OPENBLAS_", "OMP_", "NUMBA_", "GRPC_", "MALLOC_", "LD_")


class Command:
    """A fork that runs `python -P -m module arguments` in `folder`; the verbs of `subprocess.Popen[str]`.

    Its stdin is empty, its stdout and stderr are pipes; of stderr, unless a file for it was given.
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        stderr: IO[str] | None = None,
    ) -> None:
        own = environment or {}
        assert not any(name.startswith(_SEEN_AT_THE_START) for name in own), "start it by hand"
        self.returncode: int | None = None
        module, *rest = arguments
        request = {
            "module": module,
            "arguments": rest,
            "environment": {**without_settings(os.environ), **own},
            "folder": str(folder),
        }
        out, err, told = os.pipe(), os.pipe(), os.pipe()
        with Path(os.devnull).open() as empty:
            error = err[1] if stderr is None else stderr.fileno()
            socket.send_fds(
                _fork_server()[0], [json.dumps(request).encode()], [empty.fileno(), out[1], error, told[1]]
            )
        for pair in (out, err, told):
            os.close(pair[1])
        self.stdout = os.fdopen(out[0])
        self.stderr = os.fdopen(err[0])
        self._told = os.fdopen(told[0])
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when there is one."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The output that is left, once it has ended; stderr is "" where a file was given for it.

        Raises:
            subprocess.TimeoutExpired: it has not ended after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        texts = ["", ""]

        def read(index: int, stream: IO[str]) -> None:
            texts[index] = stream.read()
            stream.close()

        streams = [s for s in enumerate((self.stdout, self.stderr)) if not s[1].closed]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for reader in readers:
            reader.join()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._is_told_within(timeout):
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def _is_told_within(self, timeout: float | None) -> bool:
        # Not select.select(), which knows 1,024 files only: a test may hold more.
        told = select.poll()
        told.register(self._told, select.POLLIN)
        return bool(told.poll(None if timeout is None else timeout * 1000))


def run_command(
    *arguments: str, folder: Path, environment: Mapping[str, str] | None = None, timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it is killed after `timeout_s`."""
    command = Command(*arguments, folder=folder, environment=environment)
    try:
        stdout, stderr = command.communicate(timeout_s)
    except BaseException:
        command.kill()
        raise
    assert command.returncode is not None
    return subprocess.CompletedProcess(arguments, command.returncode, stdout, stderr)


def end_fork_server() -> None:
    """End the fork server of this process, if there is one."""
    if _fork_server.cache_info().currsize:
        requests, process = _fork_server()
        requests.close()
        process.wait()
        _fork_server.cache_clear()


@cache
def _fork_server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Our end of what it reads, and the process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", str(_SERVER)]
    with theirs:
        environment = without_settings(os.environ)
        process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment)
    return ours, process
