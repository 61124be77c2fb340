"""Frames that are turned, doubled or broken off, and clocks that jump: real runs end with the same bits."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.commands import run_command

FLAGS = ("--model", "mlp", "--workers", "2", "--steps", "40", "--set", "checkpoint.every_steps=10", "--quiet")
KINDS = {
    "servers": ("--servers", "2", "--set", "exchange.transport=tcp"),
    "ring": ("--exchange", "ring", "--set", "exchange.transport=tcp"),
}
BORNE = {
    "servers": (
        "duplicate server 1 at fetch after step 16",
        "duplicate worker 0 at push after step 18",
        "clock-jump server 1 at push after step 20",
        "clock-jump worker 0 at push after step 22 for 7200 s",
    ),
    "ring": (
        "duplicate worker 1 at sum after step 16",
        "duplicate worker 0 at push after step 18",
        "clock-jump worker 1 at push after step 20",
        "clock-jump worker 0 at push after step 22 for 7200 s",
    ),
}
OF_LINKS = {
    "servers": ("corrupt worker 1 at push after step 12", "truncate server 1 at fetch after step 25"),
    "ring": ("corrupt worker 0 at sum after step 14", "truncate worker 1 at push after step 25"),
}


def trained(folder: Path, kind: str, *faults: str) -> str:
    """The hash of the parameters of a run in which all of `faults` have happened."""
    chaos = ("--set", f"chaos.faults={json.dumps(faults)}", "--run-dir", "run", "--json", "results.json")
    done = run_command("taihu", "train", *FLAGS, *KINDS[kind], *chaos, folder=folder)
    assert done.returncode == 0, done.stderr
    told = [json.loads(path.read_text())["fault"] for path in sorted(folder.glob("run/chaos/*.json"))]
    assert told == list(faults)
    return str(json.loads((folder / "results.json").read_text())["parameters_sha256"])


@cache
def undisturbed(kind: str) -> str:
    with TemporaryDirectory() as name:
        return trained(Path(name), kind)


def lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in folder.glob(pattern) for line in path.read_text().splitlines() if line[0] == "{"
    ]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS])
def test_frames_that_come_twice_and_clocks_that_jump_change_nothing(kind: str, tmp_path: Path) -> None:
    assert trained(tmp_path, kind, *BORNE[kind]) == undisturbed(kind)
    seen = Counter(line["event"] for line in lines(tmp_path, "run/logs/*.log"))
    assert (seen["fault"], seen["a frame came twice"]) == (4, 2)
    assert not seen["all members begin again"]
    times = sorted(datetime.fromisoformat(line["time"]) for line in lines(tmp_path, "run/events.jsonl"))
    assert times[-1].timestamp() > max(each["time"] for each in lines(tmp_path, "run/chaos/*.json")) + 7000


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS])
def test_all_begin_again_behind_a_frame_that_is_damaged_or_broken_off(kind: str, tmp_path: Path) -> None:
    assert trained(tmp_path, kind, *OF_LINKS[kind]) == undisturbed(kind)
    seen = [line for line in lines(tmp_path, "run/logs/*.log") if line["event"] == "all members begin again"]
    assert len(seen) == 2 * {"servers": 4, "ring": 2}[kind]
    damaged = re.compile(r"the link from worker [01]( at \S+)? to (server|worker) \d: frame \d+ came damaged: ")
    assert any(damaged.search(str(line)) for line in seen), seen
