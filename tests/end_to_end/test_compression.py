"""Whole sparse runs of real processes: they learn, and leave a trace."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.whole_run import run_here

from taihu.core.trace import Tracer, busy_seconds, overlap_seconds

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def train(taihu: Taihu, folder: Path, *arguments: str) -> dict[str, Any]:
    done = taihu("train", "--json", "result.json", *arguments)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return results


def test_a_tenth_of_the_gradient_learns_the_digits(taihu: Taihu, tmp_path: Path) -> None:
    check_learned(train(taihu, tmp_path, "--compression", "dlgs", "--density", "0.1"), "exact")


def test_a_tenth_that_is_squeezed_on_the_way_back_learns_them_too() -> None:
    squeezed = ("compression.method=dlgs", "compression.density=0.1", "compression.downlink=doublesqueeze")
    check_learned(run_here(*squeezed), "doublesqueeze")


def test_the_end_says_that_momentum_was_dropped_and_how_many_batches_a_step_had(taihu: Taihu, tmp_path: Path) -> None:
    flags = ("--compression", "dlgs", "--density", "0.01", "--steps", "4", "--servers", "1", "--workers", "1")
    done = taihu("train", "--json", "result.json", *flags)
    assert (
        "\nmomentum        optimizer.momentum 0.9 is not applied: what compression holds back acts as" in done.stdout
    )
    assert json.loads((tmp_path / "result.json").read_text())["dropped_momentum"].startswith("optimizer.momentum 0.9")
    done = taihu("train", "--json", "result.json", *flags, "--set", "exchange.local_steps=3")
    assert "momentum" not in done.stdout
    assert ": 4 steps of 3 local steps, final loss" in done.stdout
    told = json.loads((tmp_path / "result.json").read_text())
    assert (told["dropped_momentum"], told["local_steps"], told["steps"]) == (None, 3, 4)


def check_learned(results: dict[str, Any], downlink: str) -> None:
    assert results["test_accuracy"] >= 0.96
    assert (results["compression"], results["density"], results["downlink"]) == ("dlgs", 0.1, downlink)
    assert results["selected_ratio"] == pytest.approx(0.1, rel=0.5)
    # 8 bytes of every value are for the largest overhead there is: more than that would be a defect.
    elements = sum(layer["elements"] for layer in results["profile"]["layers"])
    assert results["bytes_sent_per_step"] < 3 * (2 * 0.1 * elements * 8 + 10_000)
    assert results["thresholds"]["refreshes"]["drift"]


def test_topk_cannot_be_cut_into_groups(taihu: Taihu) -> None:
    done = taihu("train", "--compression", "topk", "--plan", "per-layer")
    assert done.returncode == 2
    assert "compression 'topk' selects from the whole gradient: set exchange.plan = 'single'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_trace_shows_workers_and_servers_on_one_clock(taihu: Taihu, tmp_path: Path) -> None:
    # What another run, of more workers, left among the logs is no part of this one.
    (tmp_path / "logs").mkdir()
    Tracer().write_part(tmp_path / "logs" / "trace-worker-7.json", "worker 7", 9)
    train(
        taihu,
        tmp_path,
        *("--compression", "dlgs", "--density", "0.1", "--steps", "20", "--plan", "per-layer"),
        *("--trace", "trace.json", "--trace-steps", "9-20", "--logs", "logs"),
    )
    trace = json.loads((tmp_path / "trace.json").read_text())
    processes = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"}
    assert processes == {"server 0", "server 1", "worker 0", "worker 1", "worker 2"}
    for worker in ("worker 0", "worker 1", "worker 2"):
        for track in ("compute", "compress", "push server 0", "pull server 1"):
            assert busy_seconds(trace, worker, track) > 0, (worker, track)
        assert overlap_seconds(trace, worker, "compute", "compress") > 0
        assert overlap_seconds(trace, worker, "compute", "push server 0") > 0
    updates = {(e["args"]["step"], e["args"]["group"]) for e in trace["traceEvents"] if e["name"] == "update"}
    assert updates >= {(step, group) for step in range(9, 21) for group in range(4)}
