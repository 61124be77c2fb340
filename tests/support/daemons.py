"""Daemons as processes of their own, started as a launcher would, and what they tell while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from support.commands import PATIENCE_S, Command
from taihu.core.job.environment import without_settings
from taihu.core.wire.base.address import free_port

__all__ = ["Process", "Start", "daemons", "free_port", "listening", "page", "ring_address", "wait_for"]

Process = Command | subprocess.Popen[str]
Start = Callable[..., Process]


@contextmanager
def daemons(folder: Path, *, by_hand: bool = False) -> Iterator[Start]:
    """`start("taihu.worker", "--rank", "0")` in `folder`, logs beside it; whatever still runs is killed at the end.

    They are forks of one process, unless they are to be started `by_hand`.
    """
    processes: list[Process] = []

    def launch(*arguments: str, environment: dict[str, str] | None = None) -> Process:
        with (folder / f"{len(processes)}.log").open("w") as log:
            if by_hand:
                process: Process = _by_hand(arguments, folder, environment or {}, log)
            else:
                process = Command(*arguments, folder=folder, environment=environment, stderr=log)
        processes.append(process)
        return process

    try:
        yield launch
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _by_hand(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], log: IO[str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *arguments],
        cwd=folder,
        env={**without_settings(os.environ), **environment},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


def listening(server: Process) -> tuple[str, int]:
    """The address and metrics port that a server tells."""
    address, metrics = _told(server).split(", metrics on port ")
    return address, int(metrics)


def ring_address(first: Process) -> str:
    """The address that worker 0 of a ring tells."""
    return _told(first)


def _told(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().removeprefix("listening on ").strip()


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Return when `condition` is true; fail with `what` when it is still false after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s:g} s: {what}"
        time.sleep(0.05)


def page(port: int, path: str = "/metrics") -> str:
    """A page of a daemon on this machine; empty while there is none, or its status is not 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""
