"""Runs that choose their compression: they are those of jobs that name the choice, whoever dies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_command

Taihu = Callable[..., subprocess.CompletedProcess[str]]

# Not in shared memory, where there is nothing to choose.
AUTO = ("--compression", "auto", "--set", "exchange.transport=grpc", "--set", "train.evaluate=false", "--steps", "40")
OWN = ("--workers", "2", "--servers", "1", "--set", "exchange.plan=bucket:100kB")


def trained(taihu: Taihu, folder: Path, *flags: str) -> dict[str, Any]:
    run = "auto" if "auto" in flags else "by_hand"
    done = taihu("train", "--json", "result.json", "--run-dir", run, *flags)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return results


def named(results: dict[str, Any]) -> tuple[str, ...]:
    """The flags that name what a run has chosen."""
    chosen = {key: value for key, value in results["chosen_compression"].items() if value is not None}
    return tuple(
        word for key, value in chosen.items() for word in ("--set", f"compression.{key}={json.dumps(value)}")
    )


def without_auto(flags: tuple[str, ...]) -> tuple[str, ...]:
    at = flags.index("--compression")
    return flags[:at] + flags[at + 2 :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs that nobody disturbs."""
    return tmp_path_factory.mktemp("by_hand")


@cache
def by_hand(choice: tuple[str, ...], folder: Path) -> str:
    """The hash of parameters of the job of `OWN` that names a choice: runs that have chosen alike end with it."""
    flags = (*without_auto(AUTO), *OWN, *choice, "--run-dir", "none", "--json", "by_hand.json")
    done = run_command("taihu", "train", *flags, folder=folder)
    assert done.returncode == 0, done.stderr
    return str(json.loads((folder / "by_hand.json").read_text())["parameters_sha256"])


@pytest.mark.parametrize("kind", [("--servers", "2"), ("--exchange", "ring")])
def test_a_run_is_that_of_the_job_that_names_the_choice(kind: tuple[str, str], taihu: Taihu, tmp_path: Path) -> None:
    flags = (*AUTO, "--workers", "2", *kind, "--set", "exchange.plan=bucket:100kB")
    results = trained(taihu, tmp_path, *flags, "--set", "checkpoint.dir=none")
    assert results["compression"] == results["chosen_compression"]["method"]
    assert results["steps"] == 40
    events = map(json.loads, (tmp_path / "auto" / "events.jsonl").read_text().splitlines())
    assert [each["compression"] for each in events if each["event"] == "chosen"] == [results["compression"]]
    other = trained(taihu, tmp_path, *without_auto(flags), *named(results), "--set", "checkpoint.dir=none")
    assert other["chosen_compression"] is None
    assert other["parameters_sha256"] == results["parameters_sha256"]


@pytest.mark.parametrize(("victim", "step"), [("server 0", 3), ("worker 1", 3), ("server 0", 25)])
def test_who_is_started_again_goes_on_with_the_choice(
    victim: str, step: int, taihu: Taihu, tmp_path: Path, folder: Path
) -> None:
    """A process may be lost in the trial, too, of which nothing is kept."""
    fault = ("--set", "checkpoint.every_steps=2", "--set", f'chaos.faults=["kill {victim} after step {step}"]')
    results = trained(taihu, tmp_path, *AUTO, *OWN, *fault)
    assert results["steps"] == 40
    assert results["parameters_sha256"] == by_hand(named(results), folder)


@pytest.mark.parametrize("resume", ["auto", "kept/step-000020"])
def test_a_run_is_resumed_with_what_it_chose(resume: str, taihu: Taihu, tmp_path: Path, folder: Path) -> None:
    kept = ("--set", "checkpoint.dir=kept", "--set", "checkpoint.every_steps=20")
    first = trained(taihu, tmp_path, *AUTO, *OWN, *kept, "--steps", "20")
    other = ("--set", f"compression.density={first['chosen_compression']['density'] / 2}")  # it would choose another
    done = taihu("train", "--json", "more.json", *AUTO, *OWN, *kept, *other, "--set", f"checkpoint.resume={resume}")
    assert done.returncode == 0, done.stderr
    more = json.loads((tmp_path / "more.json").read_text())
    assert more["chosen_compression"] == first["chosen_compression"]
    assert more["parameters_sha256"] == by_hand(named(first), folder)


def test_members_of_one_machine_begin_at_once(taihu: Taihu, tmp_path: Path) -> None:
    done = taihu("train", "--compression", "auto", "--steps", "3", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    assert "\ncompression     none, as the run has chosen\n" in done.stdout


def test_a_script_is_told_what_to_do(taihu: Taihu, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = taihu("run", "--compression", "auto", "script.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: job: compression 'auto' is chosen by steps of the built-in loop")
    done = taihu("run", "--set", "optimizer.clip_norm=1", "script.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: job: exchange.returns 'gradients' leaves layers and clipping to whoever")
