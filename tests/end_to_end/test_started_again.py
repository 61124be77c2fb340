"""Daemons that a launcher starts: it starts the lost one again by the same command, and the run goes on."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path

import pytest
from support.commands import run_command
from support.daemons import Process, Start, listening, ring_address, wait_for

from taihu.checkpoint.manifest import MANIFEST

STEPS = 400
COMMON = ("--steps", str(STEPS), "--workers", "2", "--set", "cluster.threads=1", "--set", "train.evaluate=false")
KINDS = {"servers": ("--servers", "1"), "ring": ("--exchange", "ring")}


def newest(folder: Path) -> int:
    return max((int(path.parent.name.removeprefix("step-")) for path in folder.glob(f"*/{MANIFEST}")), default=0)


def has_newer(folder: Path, step: int) -> bool:
    return newest(folder) > step


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_as_soon_as_the_lost_process_is_there_again(kind: str, start: Start, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    keeping = ("--set", f"checkpoint.dir={kept}", "--set", "checkpoint.every_steps=20")
    flags = (*KINDS[kind], *COMMON, *keeping)
    host = "server 0" if kind == "servers" else "worker 0"
    address = "127.0.0.1:0"

    def launch(name: str) -> Process:
        role, rank = name.split()
        bind = ("--bind", address) if name == host else ("--bind", "127.0.0.1:0") if kind == "ring" else ()
        own = ("--run-dir", str(tmp_path / "run"), "--json", "0.json") if name == "worker 0" else ()
        coordinator = () if name == host and address.endswith(":0") else ("--coordinator", address)
        module = "ps_server" if role == "server" else "worker"
        return start(module, *flags, "--rank", rank, *bind, *coordinator, *own)

    processes = {host: launch(host)}
    address = listening(processes[host])[0] if kind == "servers" else ring_address(processes[host])
    for name in ("worker 0", "worker 1"):
        if name not in processes:
            processes[name] = launch(name)
    for victim in ("worker 1", host):
        wait_for(partial(has_newer, kept, newest(kept)), "nothing kept")
        processes[victim].kill()
        processes[victim].wait(timeout=20)
        processes[victim] = launch(victim)
    assert {name: process.wait(timeout=90) for name, process in processes.items()} == dict.fromkeys(processes, 0)
    with (tmp_path / "run" / "steps.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, STEPS + 1))

    whole = run_command(
        *("taihu", "train", *KINDS[kind], *COMMON, "--run-dir", "none", "--json", "whole.json"), folder=tmp_path
    )
    assert whole.returncode == 0, whole.stderr
    after, undisturbed = (json.loads((tmp_path / name).read_text()) for name in ("0.json", "whole.json"))
    assert after["parameters_sha256"] == undisturbed["parameters_sha256"]
