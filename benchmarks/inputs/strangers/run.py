"""The job that strangers come to: its daemons, its memory, and somebody else who asks how it is."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.inputs.strangers.target import Target
from taihu.core.base.errors import TaihuError
from taihu.core.coordination.status import fetch_status
from taihu.core.security.files import CertificateFiles
from taihu.core.security.identity import COORDINATOR, dns_name
from taihu.core.security.security import Security

__all__ = ["Job", "Others", "Run", "memory_mb", "started"]

_NAME: Final = "strangers"
_HOST: Final = "127.0.0.1"
_WORKERS: Final = 2
_STARTS_S: Final = 120.0
_ENDS_S: Final = 600.0
_EVERY_S: Final = 0.1
_SIZE: Final = ("--servers", "1", "--workers", str(_WORKERS), "--set", "cluster.threads=1")


@dataclass(frozen=True)
class Job:
    """A job in `folder`; `encrypts` where its connections are under TLS, with certificates that are there."""

    folder: Path
    encrypts: bool

    def certify(self) -> None:
        """Make the certificates."""
        self._taihu("certs", *_SIZE, "--set", f"name={_NAME}", "--out", str(self.folder / "certs"), wait=True)

    def start(self, role: str, rank: int, *words: str) -> subprocess.Popen[str]:
        """A daemon of the job; its log is `ROLE-RANK.log`, its results are `ROLE-RANK.json`."""
        own = [role, "--rank", str(rank), *_SIZE, "--name", _NAME, "--json", f"{role}-{rank}.json"]
        if self.encrypts:
            keys = {"ca": "ca", "certificate": "{member}", "key": "{member}-key"}
            own += [f"--set=security.{key}=certs/{name}.pem" for key, name in keys.items()]
        return self._taihu(*own, *words, log=f"{role}-{rank}.log")

    def files(self, member: str) -> CertificateFiles | None:
        """The certificate of a member, such as `worker-0`; None in plain text."""
        if not self.encrypts:
            return None
        made = self.folder / "certs"
        return CertificateFiles(*(made / f"{name}.pem" for name in ("ca", member, f"{member}-key")))

    def target(self, address: str, member: str = "worker-0") -> Target:
        """The port of server 0 for somebody with the certificate of `member`."""
        return Target(address, self.files(member), dns_name(COORDINATOR, _NAME))

    def _taihu(self, *words: str, log: str = "certs.log", wait: bool = False) -> subprocess.Popen[str]:
        with (self.folder / log).open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "taihu", *words], cwd=self.folder, stdout=file, stderr=file, text=True
            )
        if wait and process.wait():
            raise RuntimeError((self.folder / log).read_text().splitlines()[-1])
        return process


@dataclass
class Others:
    """Somebody who asks for the state of the run ten times a second, each time by a new connection.

    A context manager. `seconds` are those of each answer, `failures` the errors in the place of one.
    """

    address: str
    security: Security
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="others", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            begun = time.monotonic()
            try:
                fetch_status(self.address, 10.0, self.security)
            except TaihuError as error:
                self.failures.append(str(error))
            else:
                self.seconds.append(time.monotonic() - begun)

    def summary(self) -> dict[str, object]:
        """The times of the answers so far, and the number of failures."""
        times = self.seconds or [0.0]
        return {
            "answers": len(self.seconds),
            "failures": len(self.failures),
            "median_s": round(median(times), 4),
            "most_s": round(max(times), 4),
        }


@dataclass(frozen=True)
class Run:
    """A run of the job: its daemons, server 0 first, and the address of that."""

    job: Job
    address: str
    processes: tuple[subprocess.Popen[str], ...]

    @property
    def security(self) -> Security:
        """An observer's."""
        files = self.job.files("observer-0")
        return Security() if files is None else Security(_NAME, files)

    @property
    def memory_mb(self) -> float:
        """The memory of server 0 that is in use, in MB."""
        return memory_mb(self.processes[0].pid)

    @property
    def threads(self) -> int:
        """The threads of server 0."""
        return _kilobytes(self.processes[0].pid, "Threads")

    @property
    def open_files(self) -> int:
        """The open files of server 0."""
        return len(list(Path(f"/proc/{self.processes[0].pid}/fd").iterdir()))

    @property
    def step(self) -> int:
        """The step that worker 0 has completed."""
        status = fetch_status(self.address, 20.0, self.security)
        return max((member.progress.step for member in status.members), default=0)

    def stop(self) -> None:
        """Ask the run to end in order, as a user does."""
        self.processes[-1].send_signal(signal.SIGTERM)

    def results(self) -> Mapping[str, Any]:
        """Wait for the end, and return the results of worker 0.

        Raises:
            RuntimeError: the run failed.
        """
        for process in self.processes:
            process.wait(timeout=_ENDS_S)
        path = self.job.folder / "worker-0.json"
        if not path.exists():
            raise RuntimeError((self.job.folder / "worker-0.log").read_text().splitlines()[-1])
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@contextmanager
def started(job: Job, steps: int) -> Iterator[Run]:
    """A run of `steps` that has begun; its processes end with the block."""
    processes = [job.start("server", 0, "--bind", f"{_HOST}:0", "--steps", str(steps))]
    try:
        address = _address(job.folder / "server-0.log", processes[0])
        for rank in range(_WORKERS):
            words = ("--coordinator", address, "--steps", str(steps))
            processes.append(job.start("worker", rank, *words))
        yield Run(job, address, tuple(processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _address(log: Path, process: subprocess.Popen[str]) -> str:
    """The address that server 0 tells in its log when it listens."""
    deadline = time.monotonic() + _STARTS_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"listening on ([\d.]+:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"server 0 does not listen: {log.read_text()[-500:]}")


def memory_mb(pid: int) -> float:
    """The memory of a process that is in use, in MB."""
    return _kilobytes(pid, "VmRSS") / 1000.0


def _kilobytes(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
