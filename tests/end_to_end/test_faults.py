"""Cells of the sweep of faults as real runs: all go on to the same bits, or the one that was hit is named."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.commands import run_command

FLAGS = ("--model", "mlp", "--workers", "2", "--steps", "40", "--set", "checkpoint.every_steps=10")
KINDS = {
    "servers": ("--servers", "2", "--set", "exchange.transport=tcp"),
    "ring": ("--exchange", "ring", "--set", "exchange.transport=tcp"),
}
FAULTS = {
    "servers": ("kill server 0 at checkpoint-rename after step 12", "drop worker 1 at fetch after step 25"),
    "ring": ("kill worker 1 at join", "drop worker 0 at sum after step 25"),
}


def train(folder: Path, *flags: str, faults: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    chaos = ("--set", f"chaos.faults={json.dumps(faults)}")
    return run_command("taihu", "train", *FLAGS, *flags, *chaos, "--json", "results.json", folder=folder)


@pytest.mark.parametrize("kind", KINDS)
def test_faults_of_the_job_happen_once_and_change_no_bit(kind: str, tmp_path: Path) -> None:
    hashes = []
    for name, faults in (("whole", ()), ("hit", FAULTS[kind])):
        folder = tmp_path / name
        folder.mkdir()
        done = train(folder, *KINDS[kind], "--run-dir", "run", faults=faults)
        assert done.returncode == 0, done.stderr
        hashes.append(json.loads((folder / "results.json").read_text())["parameters_sha256"])
        told = [json.loads(path.read_text())["fault"] for path in sorted((folder / "run" / "chaos").glob("*.json"))]
        assert told == list(faults)
    assert hashes[0] == hashes[1]


def test_who_is_told_to_end_before_it_took_part_is_named(tmp_path: Path) -> None:
    done = train(tmp_path, *KINDS["servers"], faults=("terminate worker 1 at start-up",))
    assert done.returncode == 130
    assert done.stderr == "error: worker 1: interrupted before it took part, and the others wait for it\n"


def test_who_is_stopped_in_its_farewell_keeps_nobody(tmp_path: Path) -> None:
    quick = ("--set", "cluster.lost_after_s=3", "--set", "cluster.heartbeat_s=0.1")
    done = train(tmp_path, *KINDS["servers"], *quick, faults=("stop server 1 at farewell for 3600 s",))
    assert done.returncode == 0, done.stderr
    assert "server 1 was stopped for 3 s, and ended; it had done its part" in done.stdout


def test_checkpoints_that_take_longer_than_their_interval_are_kept(tmp_path: Path) -> None:
    """The only member that wrote had each of them removed while it was being written: only the last was kept."""
    keeping = ("--set", "checkpoint.dir=kept", "--set", "checkpoint.every_steps=5", "--set", "checkpoint.keep=1000")
    slow = ("--set", 'chaos.faults=["slow-disk worker 0 after 0 s for 600 s"]', "--set", "train.evaluate=false")
    ring = ("--exchange", "ring", "--workers", "2", "--steps", "300")
    done = run_command("taihu", "train", *ring, *keeping, *slow, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "kept").glob("*/manifest.json"))) > 1
