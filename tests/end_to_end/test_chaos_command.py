"""`taihu dev chaos` on a real run: from outside, and inside of processes that listen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.commands import Command, run_command
from support.daemons import wait_for

FLAGS = (
    "--model",
    "mlp",
    "--servers",
    "1",
    "--workers",
    "2",
    "--run-dir",
    "run",
    "--set",
    "checkpoint.every_steps=20",
)


def resumed(folder: Path) -> int:
    events = folder / "run" / "events.jsonl"
    return events.read_text().count('"event": "resumed"') if events.exists() else 0


def has_kept(folder: Path) -> bool:
    return any(folder.glob("run/checkpoints/*/manifest.json"))


@pytest.mark.parametrize("listens", ["true", "false"])
def test_faults_from_outside(listens: str, tmp_path: Path) -> None:
    listening = ("--set", f"chaos.listens={listens}")
    process = Command("taihu", "train", *FLAGS, *listening, "--steps", "1000000", folder=tmp_path)
    try:
        wait_for(lambda: has_kept(tmp_path), "nothing kept")
        done = run_command("taihu", "dev", "chaos", "run", "kill worker 1", folder=tmp_path)
        assert (done.returncode, done.stdout.split()[1:]) == (0, ["kill", "worker", "1"]), done.stderr
        wait_for(lambda: resumed(tmp_path) == 1, "it does not go on")
        done = run_command("taihu", "dev", "chaos", "run", "drop worker 0", folder=tmp_path)
        if listens == "true":
            assert (done.returncode, done.stdout.split()[1:]) == (0, ["drop", "worker", "0"]), done.stderr
            wait_for(lambda: resumed(tmp_path) == 2, "it does not go on")
        else:
            assert done.returncode == 2
            assert done.stderr.startswith("error: drop: happens inside of a process, and none of run listens; start")
        done = run_command("taihu", "dev", "chaos", "run", "kill worker 1 at push", folder=tmp_path)
        assert done.returncode == 2
        assert "points and steps are known to the run alone" in done.stderr
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    wait_for(
        lambda: run_command("taihu", "dev", "chaos", "run", "kill any", folder=tmp_path).returncode == 1, "some live"
    )
