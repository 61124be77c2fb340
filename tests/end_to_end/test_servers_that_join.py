"""Servers that join a run, leave it and are killed, whose bits do not depend on that."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from support.agents import Machines, ends_as_undisturbed

from taihu.core.history.checking import check_histories
from taihu.core.history.files import read_histories

Taihu = Callable[..., subprocess.CompletedProcess[str]]

FLAGS = ("--servers", "1", "--workers", "2")


def test_servers_join_leave_and_are_killed(tmp_path: Path, taihu: Taihu) -> None:
    """One server becomes three; the first that joined is killed, so that the other takes its place, and leaves."""
    history = tmp_path / "history"
    machines = Machines(tmp_path, (*FLAGS, "--set", f"run.history={history}"), ("server 0", "worker 0", "worker 1"))
    with machines.running():
        machines.goes_on(0)
        first = machines.join()
        machines.goes_on_with(2)
        second = machines.join()
        machines.goes_on_with(3)
        machines.signal(first, signal.SIGKILL)
        machines.goes_on_with(2)
        machines.signal(second, signal.SIGTERM)
        machines.goes_on_with(1)
        assert machines.code(second) == 130
        disturbed = machines.stop()
    assert sum(each.get("made_again", 0) for each in machines.resumed) <= 1, machines.said()
    verdict = check_histories(read_histories(history))
    assert not verdict.findings
    assert verdict.generations >= 5
    ends_as_undisturbed(disturbed, FLAGS, tmp_path, taihu)
