"""`taihu runs`, `logs` and `stop`, of a run that goes on and of one that has ended."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.commands import run_command
from support.daemons import Start, listening, wait_for

FEW = ("--model", "mlp", "--batch", "8", "--workers", "2", "--steps")


def taihu(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("taihu", *arguments, folder=folder)


def listed(folder: Path) -> dict[str, dict[str, object]]:
    """The runs by name, as `taihu runs` writes them."""
    done = taihu(folder, "runs", "--json", "-")
    assert done.returncode == 0, done.stderr
    return {Path(run["folder"]).name: run for run in json.loads(done.stdout)["runs"]}


def has_steps(status: subprocess.CompletedProcess[str]) -> bool:
    return any(member["step"] for member in json.loads(status.stdout)["members"])


def test_a_run_is_listed_looked_at_and_stopped(start: Start, tmp_path: Path) -> None:
    done = taihu(tmp_path, "train", *FEW, "3", "--run-dir", "runs/short")
    assert done.returncode == 0, done.stderr
    going_on = start("taihu", "train", *FEW, "1000000", "--run-dir", "runs/long")
    wait_for(lambda: listed(tmp_path).get("long", {}).get("step", 0) != 0, "no step")
    runs = listed(tmp_path)
    assert (runs["short"]["state"], runs["short"]["step"], runs["short"]["steps"]) == ("finished", 3, 3)
    assert (runs["long"]["state"], runs["long"]["steps"]) == ("running", 1000000)
    following = start("taihu", "logs", "--follow", "long", "worker-1")
    asked = taihu(tmp_path, "stop", "long")
    assert (asked.returncode, asked.stderr, asked.stdout) == (0, "", "runs/long: stopped\n")
    assert going_on.wait(timeout=600) == 130
    seen, _ = following.communicate()
    assert " worker 1: training steps=1000000" in seen
    assert " worker 1: stopped steps=" in seen
    assert following.returncode == 0
    assert "worker 0" not in seen
    assert listed(tmp_path)["long"]["state"] == "stopped"
    assert (tmp_path / "runs" / "long" / "model.safetensors").is_file()
    again = taihu(tmp_path, "stop", "long")
    assert (again.returncode, again.stdout) == (0, "runs/long: stopped; no process of it lives on this machine\n")
    table = taihu(tmp_path, "runs").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["run", "short", "long"]
    assert "3 of 3" in table[1]


def test_a_run_elsewhere_is_asked_where_its_coordinator_listens(start: Start, tmp_path: Path) -> None:
    flags = ("--servers", "1", *FEW, "1000000")
    server = start("taihu", "server", "--bind", "127.0.0.1:0", *flags)
    address, _ = listening(server)
    workers = [start("taihu", "worker", "--rank", rank, "--coordinator", address, *flags) for rank in "01"]
    wait_for(lambda: has_steps(taihu(tmp_path, "status", address, "--json", "-")), "no step")
    asked = taihu(tmp_path, "stop", address, "--reason", "the power goes")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("job taihu: asked to stop")
    assert [process.wait(timeout=600) for process in (server, *workers)] == [130] * 3
    assert "the power goes" in (tmp_path / "0.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs",), "runs: no folder of runs"),
        (("logs",), "runs: no folder of runs"),
        (("logs", "other"), "other: no folder of a run; taihu runs lists them"),
        (("stop", "other"), "other: no folder of a run"),
        (("stop", "127.0.0.1:1", "--timeout", "0.2"), "coordinator at 127.0.0.1:1: no answer within 0.2 s"),
        (("stop",), "Missing argument"),
        (("stop", "long", "--reason", "x"), "--reason x: is told to a coordinator"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = taihu(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
