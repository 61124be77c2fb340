"""Processes that a signal has stopped are ended in their time, and named; with real processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from taihu.local.processes.processes import DaemonFailedError, LocalProcesses

STOPS_ITSELF = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('listening on 127.0.0.1:1')\n"
TAKES_SECONDS = "import time\ntime.sleep(60)\n"
STOPPED = r"server 0 was stopped for 0.2 s, and ended; log: "


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the processes below."""
    (tmp_path / "stops_itself.py").write_text(STOPS_ITSELF)
    (tmp_path / "takes_seconds.py").write_text(TAKES_SECONDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("modules")
def test_who_is_stopped_before_it_listens_is_ended(tmp_path: Path) -> None:
    with (
        LocalProcesses(tmp_path, lost_after_s=0.2) as processes,
        pytest.raises(DaemonFailedError, match=STOPPED) as told,
    ):
        processes.start_listening("server 0", "stops_itself", ())
    assert told.value.was_killed


@pytest.mark.usefixtures("modules")
def test_who_is_stopped_is_ended_and_who_is_not_is_left_alone(tmp_path: Path) -> None:
    with LocalProcesses(tmp_path, lost_after_s=0.2) as processes:
        stopped, other = (processes.start(name, "takes_seconds", ()) for name in ("server 0", "worker 0"))
        os.kill(stopped.pid, signal.SIGSTOP)
        while stopped.poll() is None:
            processes.end_stopped()
            time.sleep(0.01)
        with pytest.raises(DaemonFailedError, match=STOPPED):
            processes.check()
        assert other.poll() is None


@pytest.mark.usefixtures("modules")
def test_who_goes_on_in_time_is_left_alone(tmp_path: Path) -> None:
    with LocalProcesses(tmp_path, lost_after_s=0.3) as processes:
        process = processes.start("server 0", "takes_seconds", ())
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            os.kill(process.pid, signal.SIGSTOP)
            processes.end_stopped()
            os.kill(process.pid, signal.SIGCONT)
            processes.end_stopped()
            time.sleep(0.01)
        assert process.poll() is None
