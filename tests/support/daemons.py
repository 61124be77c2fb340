"""Daemons as processes of their own, started as a launcher would, and what they tell while they run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from taihu.job.environment import without_settings

__all__ = ["Start", "daemons", "free_port", "listening", "page", "ring_address", "wait_for"]

Start = Callable[..., subprocess.Popen[str]]


@contextmanager
def daemons(folder: Path) -> Iterator[Start]:
    """`start("worker", "--rank", "0")` in `folder`, logs beside it; whatever still runs is killed at the end."""
    processes: list[subprocess.Popen[str]] = []

    def launch(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        with (folder / f"{len(processes)}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", *arguments],
                cwd=folder,
                env={**without_settings(os.environ), **(environment or {})},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        processes.append(process)
        return process

    try:
        yield launch
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def listening(server: subprocess.Popen[str]) -> tuple[str, int]:
    """The address and metrics port that a server tells."""
    address, metrics = _told(server).split(", metrics on port ")
    return address, int(metrics)


def ring_address(first: subprocess.Popen[str]) -> str:
    """The address that worker 0 of a ring tells."""
    return _told(first)


def _told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().removeprefix("listening on ").strip()


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 90) -> None:
    """Return when `condition` is true; fail with `what` when it is still false after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s:g} s: {what}"
        time.sleep(0.05)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int) -> str:
    """The /metrics page of a daemon on this machine; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""
