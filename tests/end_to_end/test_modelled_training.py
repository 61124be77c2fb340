"""Runs of real processes that are planned for another processor: the same results, its times beside them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taihu.worker.engine import build_model
from taihu.worker.sw26010 import layer_times, modelled_step

Taihu = Callable[..., subprocess.CompletedProcess[str]]

COMMON = ("--servers", "1", "--workers", "2", "--batch", "8", "--steps", "9", "--set=exchange.calibration_steps=4")


def train(taihu: Taihu, folder: Path, compute: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """Results of a run, and what it said."""
    done = taihu("train", *COMMON, "--compute", compute, "--json", f"{compute}.json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{compute}.json").read_text()), done.stdout


def test_a_run_planned_for_the_sw26010_ends_as_on_the_cpu(taihu: Taihu, tmp_path: Path) -> None:
    on_cpu, _ = train(taihu, tmp_path, "cpu")
    planned, said = train(taihu, tmp_path, "sw26010", "--trace", "trace.json")
    assert planned["parameters_sha256"] == on_cpu["parameters_sha256"]
    assert (on_cpu["compute"], on_cpu["modelled"], on_cpu["profile"]["compute"]) == ("cpu", None, "cpu")

    model = build_model("small_cnn", (8, 8, 1), 10)
    step = modelled_step(model, (8, 8, 1), 8)
    profile = planned["profile"]
    assert profile["compute"] == planned["compute"] == "sw26010"
    assert profile["forward_seconds"] == step.forward_seconds
    of_layers = [layer["backward_seconds"] for layer in profile["layers"]]
    assert of_layers == pytest.approx(step.backward_seconds, abs=1e-12)
    names = [layer.name for layer in layer_times(model, (8, 8, 1), 8)]
    assert [layer["name"] for layer in planned["modelled"]["layers"]] == names
    assert "planned for an SW26010 (4 core groups)" in said
    assert "with the modelled compute" in said
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    drawn = [e for e in events if e.get("cat") == "modelled compute" and e["name"] == "conv1 backward"]
    assert sorted(e["args"]["step"] for e in drawn) == sorted([*range(1, 10)] * 2)


@pytest.mark.parametrize(
    "settings",
    [
        ("train.recompute=memory",),
        ("exchange.fc=shard",),
        ("exchange.fc=shard", "exchange.fc_scheme=slices", "train.recompute=memory"),
        ("exchange.zero=3", "train.recompute=memory"),
    ],
)
def test_spread_layers_and_what_is_computed_again_take_their_times(
    taihu: Taihu, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Paced steps take all that is modelled, with the bits of runs that are not."""
    flags = [f"--set={each}" for each in settings]
    on_cpu, _ = train(taihu, tmp_path, "cpu", *flags)
    paced, said = train(taihu, tmp_path, "sw26010", *flags, "--set=cluster.pace=40")
    assert paced["parameters_sha256"] == on_cpu["parameters_sha256"]
    modelled = paced["modelled"]
    again = modelled["recompute_seconds"]
    assert (again > 0) == ("train.recompute=memory" in settings) == ("computed again" in said)
    least = 40 * (modelled["forward_seconds"] + modelled["backward_seconds"] + again)
    assert paced["seconds_per_step"]["min"] >= 0.999 * least
    # What is planned for is the pace, with what the spread end moves.
    profile = paced["profile"]
    told = profile["forward_seconds"] + sum(layer["backward_seconds"] for layer in profile["layers"])
    assert told >= 0.999 * least
