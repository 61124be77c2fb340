"""Daemons as processes of their own, started as a launcher would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from taihu.environment import without_settings

__all__ = ["Start", "daemons", "listening"]

Start = Callable[..., subprocess.Popen[str]]


@contextmanager
def daemons(folder: Path) -> Iterator[Start]:
    """`start("worker", "--rank", "0")` in `folder`, logs beside it; whatever still runs is killed at the end."""
    processes: list[subprocess.Popen[str]] = []

    def launch(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        with (folder / f"{len(processes)}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
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


def listening(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The address and metrics port that a server tells."""
    assert process.stdout is not None
    address, metrics = process.stdout.readline().removeprefix("listening on ").split(", metrics on port ")
    return address, int(metrics)
