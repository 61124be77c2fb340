"""Processes of a run on this machine are killed, one after the other: it ends as if nothing had happened."""

from __future__ import annotations

import csv
import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from support.commands import PATIENCE_S, Command, run_command
from support.daemons import wait_for

from taihu.core.checkpoint.manifest import MANIFEST

STEPS = 200
FLAGS = ("--servers", "2", "--workers", "2", "--steps", str(STEPS), "--set", "checkpoint.every_steps=10")
LOCAL = ("--set", "exchange.local_steps=2", "--set", "compression.downlink_value_type=int4")
KINDS = {
    "servers": (*FLAGS, "--optimizer", "adam", "--zero", "3", "--precision", "bf16"),
    "ring": (*FLAGS[2:], "--exchange", "ring", "--compression", "lags", "--density", "0.1"),
    "local steps": (*FLAGS, "--compression", "dlgs", "--density", "0.1", *LOCAL),
    "spread layers": (*FLAGS, "--fc", "shard", "--optimizer", "adam", "--zero", "3"),
}


def daemons(process: Command) -> dict[str, int]:
    """The pids of the daemons by name."""
    found: dict[str, int] = {}
    for pid in sorted(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().split()
        for module, role in (("taihu.ps_server", "server"), ("taihu.worker", "worker")):
            if module in words and "--rank" in words:
                found[f"{role} {words[words.index('--rank') + 1]}"] = pid
    return found


def newest(home: Path) -> int:
    """The step of the newest checkpoint of the one run."""
    kept = [int(path.parent.name.removeprefix("step-")) for path in home.glob(f"runs/*/checkpoints/*/{MANIFEST}")]
    return max(kept, default=0)


def has_newer(home: Path, step: int) -> bool:
    return newest(home) > step


def steps_made_again(run: Path) -> list[int]:
    """The number of completed steps that were made again, each time that the run went on."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [each["made_again"] for each in events if each["event"] == "resumed"]


def has_gone_on(home: Path, times: int) -> bool:
    (run,) = (home / "runs").iterdir()
    return len(steps_made_again(run)) == times


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_outlives_its_processes(kind: str, tmp_path: Path) -> None:
    victims = ["worker 1", "worker 0"] if kind == "ring" else ["worker 1", "server 0", "worker 0"]
    recorded = ("--set", "run.history=history")
    process = Command("taihu", "train", *KINDS[kind], *recorded, "--json", "killed.json", folder=tmp_path)
    try:
        wait_for(partial(has_newer, tmp_path, 0), "nothing kept")
        for number, victim in enumerate(victims):
            wait_for(partial(has_gone_on, tmp_path, number), "it does not go on")
            pid = daemons(process)[victim]
            os.kill(pid, signal.SIGKILL)
            wait_for(partial(is_gone, pid), "it is there still")
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    for victim in victims:
        assert f"{victim} was killed by SIGKILL; another process takes its place, and all go on after step " in output

    whole = run_command("taihu", "train", *KINDS[kind], "--run-dir", "none", "--json", "whole.json", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    after, undisturbed = (json.loads((tmp_path / name).read_text()) for name in ("killed.json", "whole.json"))
    assert after["parameters_sha256"] == undisturbed["parameters_sha256"]
    assert after["steps"] == STEPS

    (run,) = (tmp_path / "runs").iterdir()
    # The tables are those of one run: each step once, in order.
    with (run / "steps.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, STEPS + 1))
    with (run / "epochs.csv").open(newline="") as file:
        tested = [int(row["step"]) for row in csv.DictReader(file)]
    assert tested == sorted(set(tested))
    assert tested[-1] == STEPS
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert (events.count("restarted"), events[-1]) == (len(victims), "finished")
    # Worker 0 may have completed a step a moment before another one had.
    assert all(again <= 1 for again in steps_made_again(run))

    # Of what all processes recorded, a model finds that nothing was lost and nothing applied twice.
    checked = run_command("taihu", "dev", "history", str(run), folder=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(victims) + 1} generations" in checked.stdout
    assert f"1 to {STEPS}: nothing lost" in checked.stdout


TESTED = {
    "servers": ("--servers", "2"),
    "ring": ("--exchange", "ring"),
    "ring that divides": ("--exchange", "ring", "--zero", "3"),
    "spread layers": ("--servers", "1", "--fc", "shard"),
}


@pytest.mark.parametrize("kind", TESTED)
def test_a_test_that_was_lost_with_its_process_is_made_by_its_successor(kind: str, tmp_path: Path) -> None:
    """All hold the epoch's last step when worker 0 is killed: nobody makes it again, and it is tested."""
    fault = ("--set", 'chaos.faults=["kill worker 0 at evaluation"]')
    done = run_command("taihu", "train", *TESTED[kind], "--workers", "2", "--epochs", "3", *fault, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    with (run / "epochs.csv").open(newline="") as file:
        tested = [(int(row["epoch"]), int(row["step"])) for row in csv.DictReader(file)]
    per_epoch = tested[0][1]
    assert tested == [(epoch, epoch * per_epoch) for epoch in (1, 2, 3)]
    with (run / "steps.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 3 * per_epoch + 1))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    resumed = [(each["after_step"], each["made_again"]) for each in events if each["event"] == "resumed"]
    assert resumed == [(per_epoch, 0)]


BLAMED = {
    "server": ("server 1", ("--servers", "2", "--workers", "3"), "server-0"),
    "worker": ("worker 2", ("--servers", "2", "--workers", "3"), "server-0"),
    "ring": ("worker 2", ("--exchange", "ring", "--workers", "3"), "worker-0"),
}


@pytest.mark.parametrize("kind", BLAMED)
def test_the_dead_one_is_blamed(kind: str, tmp_path: Path) -> None:
    victim, flags, coordinator = BLAMED[kind]
    again = ("--steps", "100000", "--set", "checkpoint.every_steps=5", "--set", "checkpoint.restarts=9")
    process = Command("taihu", "train", *flags, *again, folder=tmp_path)
    try:
        for killed in range(1, 4):
            wait_for(partial(has_newer, tmp_path, newest(tmp_path)), "nothing kept")
            os.kill(daemons(process)[victim], signal.SIGKILL)
            (log,) = tmp_path.glob(f"runs/*/logs/{coordinator}.log")
            wait_for(partial(began_again, log, killed), "nobody begins again")
            assert victim in reasons(log)[-1]
            wait_for(partial(has_newer, tmp_path, newest(tmp_path)), "it does not go on")
    finally:
        process.kill()
        process.communicate()


def began_again(log: Path, times: int) -> bool:
    return len(reasons(log)) == times


def reasons(log: Path) -> list[str]:
    """The reasons for which all members began again, as the coordinator says."""
    told = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line["reason"] for line in told if line["event"] == "all members begin again"]


def test_a_run_that_dies_again_and_again_ends_with_the_reason(tmp_path: Path) -> None:
    # It may have made steps by then: none is to be held.
    flags = ("--servers", "1", "--workers", "1", "--steps", "100000", "--set", "checkpoint.restarts=1")
    held = ("--set", "checkpoint.in_memory=false")
    process = Command("taihu", "train", *flags, *held, folder=tmp_path)
    try:
        for _ in range(2):
            wait_for(lambda: "worker 0" in daemons(process), "no worker")
            pid = daemons(process)["worker 0"]
            os.kill(pid, signal.SIGKILL)
            wait_for(partial(is_gone, pid), "it is there still")
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1
    assert output.count("all go on after step 0") == 1
    assert errors.startswith("error: worker 0 was killed by SIGKILL")
    told = "checkpoint.restarts = 1 within an hour are used up, and there is no checkpoint to go on from\n"
    assert errors.endswith(f"; {told}")
    assert errors.count("\n") == 1


def test_a_coordinator_that_dies_before_it_listens_is_started_again(tmp_path: Path) -> None:
    flags = ("--servers", "1", "--workers", "1", "--steps", "30")
    process = Command("taihu", "train", *flags, folder=tmp_path)
    try:
        wait_for(lambda: "server 0" in daemons(process), "no server")
        os.kill(daemons(process)["server 0"], signal.SIGKILL)
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    assert "server 0 was killed by SIGKILL; another process takes its place, and all go on after step 0" in output


@pytest.mark.parametrize("victim", ["worker 0", "worker 1", "server 0"])
def test_who_dies_while_all_say_farewell_has_told_its_results(victim: str, tmp_path: Path) -> None:
    flags = ("--servers", "1", "--workers", "2", "--steps", "60", "--set", "checkpoint.every_steps=20")
    process = Command("taihu", "train", *flags, folder=tmp_path, environment={"TMPDIR": str(tmp_path)})
    try:
        # It may be over before it is looked at.
        wait_for(lambda: process.poll() is not None or any(tmp_path.glob("taihu-*/worker-1.json")), "no results")
        if victim in (known := daemons(process)):
            os.kill(known[victim], signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors


def test_nobody_waits_for_a_coordinator_that_dies_when_the_run_is_over(tmp_path: Path) -> None:
    flags = ("--servers", "2", "--workers", "1", "--steps", "60", "--set", "checkpoint.every_steps=20")
    fault = ("--set", 'chaos.faults=["kill server 0 at farewell"]')
    # Server 1 alone would be ended after four times as long, its coordinator waited for as long again; it hears
    # nothing of the end before that dies.
    patience = ("--set", "cluster.lost_after_s=3000", "--set", "cluster.connect_timeout_s=12000")
    slow = ("--set", "cluster.heartbeat_s=900")
    process = Command("taihu", "train", *flags, *fault, *patience, *slow, folder=tmp_path)
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
