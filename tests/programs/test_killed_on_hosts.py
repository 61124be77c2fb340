"""Processes killed on hosts of their own, which share a folder and nothing else: no completed step is made again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemons import wait_for

from benchmarks.recovery.on_hosts import OnHosts

Taihu = Callable[..., subprocess.CompletedProcess[str]]

JOB = (
    *("--model", "cifar10_quick", "--data", "synthetic:3x32x32:samples=512", "--batch", "8", "--steps", "400"),
    *("--set", "train.evaluate=false", "--set", "cluster.threads=1"),
)
"""Steps enough for all that is killed; its only checkpoint would be the last one, a minute being longer."""
KINDS = {
    "servers": (
        ("--servers", "2", "--workers", "2", "--optimizer", "adam"),
        ("server 0", "server 1", "worker 0", "worker 1"),
        ("server 1", "worker 0", "server 0"),
    ),
    "a ring that divides": (
        ("--exchange", "ring", "--workers", "3", "--zero", "1", "--optimizer", "adam"),
        ("worker 0", "worker 1", "worker 2"),
        ("worker 2", "worker 0"),
    ),
}


def events_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps_of(folder: Path) -> int:
    """The number of lines in the table of the run's steps."""
    path = folder / "run" / "steps.csv"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_killed_costs_no_completed_step(kind: str, tmp_path: Path, taihu: Taihu) -> None:
    flags, members, victims = KINDS[kind]
    undisturbed = taihu("train", *JOB, *flags, "--json", str(tmp_path / "local.json"), "--run-dir", "none")
    assert undisturbed.returncode == 0, undisturbed.stderr
    with OnHosts(tmp_path, (*JOB, *flags, "--set", "checkpoint.restarts=100"), members, 1e9) as run:
        for count, victim in enumerate(victims):

            def has_gone_on(count: int = count) -> bool:
                """Whether steps have been made, and are again behind the kill before."""
                resumed = sum(each["event"] == "resumed" for each in events_of(tmp_path))
                return resumed == count and steps_of(tmp_path) > 20

            wait_for(has_gone_on, f"it does not go on before {victim} is killed")
            os.kill(run.daemons()[victim], signal.SIGKILL)
        assert run.wait() == 0
    resumed = [each for each in events_of(tmp_path) if each["event"] == "resumed"]
    assert len(resumed) == len(victims)
    assert [each.get("made_again", 0) for each in resumed] == [0] * len(victims)
    ends = [json.loads((tmp_path / name).read_text()) for name in ("local.json", "results.json")]
    assert len({each["parameters_sha256"] for each in ends}) == 1
