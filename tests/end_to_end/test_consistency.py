"""Runs of real processes whose steps do not wait for all workers."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.commands import PATIENCE_S, Command, run_command
from support.daemons import wait_for

SMALL = ("--servers", "2", "--workers", "3", "--set", "exchange.frame_bytes=32768", "--steps", "40")
"""Several frames at each server, which differ in their orders."""


def trained(folder: Path, consistency: str, *flags: str) -> dict[str, Any]:
    """The results of a run, whose folder is `run`."""
    command = ("taihu", "train", *SMALL, "--consistency", consistency, "--run-dir", "run", *flags, "--quiet")
    done = run_command(*command, folder=folder)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "run" / "results.json").read_text())
    return results


def replayed(folder: Path) -> str:
    """The hash that a replay of the run ends with, which is that of the run."""
    done = run_command("taihu", "dev", "replay", "run", "--json", "replayed.json", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "ended with the same parameters" in done.stdout
    return str(json.loads((folder / "replayed.json").read_text())["parameters_sha256"])


def test_nobody_ahead_is_the_usual_run_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "bsp").mkdir()
    usual = trained(tmp_path / "bsp", "bsp")
    none = trained(tmp_path, "ssp:0")
    assert none["parameters_sha256"] == usual["parameters_sha256"]
    assert none["path"] == usual["path"] == "same-host"
    assert none["staleness"] is None
    assert not (tmp_path / "run" / "order").exists()


@pytest.mark.parametrize("consistency", ["ssp:2", "async", "bsp:N-1"])
def test_a_run_is_made_again_to_its_bits(consistency: str, tmp_path: Path) -> None:
    results = trained(tmp_path, consistency, "--check-every", "15", "--set", "checkpoint.every_steps=10")
    assert results["steps"] == 40
    assert replayed(tmp_path) == replayed(tmp_path) == results["parameters_sha256"]
    staleness = results["staleness"]
    whole = staleness["entered"] + staleness["dropped"]
    frames = sum(len(json.loads(path.read_bytes().partition(b"\n")[0])["frames"]) for path in orders(tmp_path))
    if consistency == "bsp:N-1":
        assert staleness["entered"] == 2 * 40 * frames
        assert staleness["most_steps"] == 0
    else:
        assert whole == staleness["entered"] == 3 * 40 * frames
    if consistency == "ssp:2":
        assert staleness["most_steps"] <= 2


def orders(folder: Path) -> list[Path]:
    return sorted((folder / "run" / "order").iterdir())


def test_each_worker_ends_a_stopped_run_where_it_stands(tmp_path: Path) -> None:
    flags = (*SMALL[:-1], "1000000", "--consistency", "async", "--run-dir", "run", "--quiet")
    process = Command("taihu", "train", *flags, folder=tmp_path)
    try:
        steps = tmp_path / "run" / "steps.csv"
        wait_for(lambda: steps.exists() and len(steps.read_text().splitlines()) > 20, "no steps")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["stopped"]
    assert replayed(tmp_path) == results["parameters_sha256"]


def test_a_lost_worker_leads_back_to_the_newest_checkpoint(tmp_path: Path) -> None:
    fault = ("--set", 'chaos.faults=["kill worker 1 at push after step 25"]')
    results = trained(tmp_path, "async", "--set", "checkpoint.every_steps=10", *fault)
    assert results["steps"] == 40
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (resumed,) = [each["after_step"] for each in events if each["event"] == "resumed"]
    assert resumed in (10, 20)
    done = run_command("taihu", "dev", "replay", "run", folder=tmp_path)
    assert done.returncode == 2
    assert "the run has begun again" in done.stderr


def test_a_run_that_waits_for_all_has_nothing_to_be_made_again_by(tmp_path: Path) -> None:
    trained(tmp_path, "bsp", "--steps", "3")
    done = run_command("taihu", "dev", "replay", "run", folder=tmp_path)
    assert done.returncode == 2
    assert "no orders there" in done.stderr
