"""Processes that take the places of others are started anew, not forked from one that uses gRPC by then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from taihu.local.processes.processes import LocalProcesses


def test_who_takes_a_place_is_no_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for the threads of gRPC, of which Python knows nothing: it was never seen to return."""
    forked: list[bool] = []

    def launch(
        self: LocalProcesses, module: str, arguments: Sequence[str], log_file: IO[bytes], *, forks: bool
    ) -> subprocess.Popen[bytes]:
        forked.append(forks)
        return subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr("taihu.local.processes.processes.can_fork", lambda own: True)
    monkeypatch.setattr("taihu.local.processes.processes.prepare_to_fork", lambda _: True)
    monkeypatch.setattr(LocalProcesses, "_launch", launch)
    with LocalProcesses(tmp_path, fork=True) as processes:
        processes.start("worker 0", "worker", ()).wait()
        processes.replace("worker 0")
    assert forked == [True, False]
