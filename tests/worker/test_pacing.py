"""Steps at the pace of another processor, on a clock that is moved by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_command

from taihu.worker.engine import StepHooks
from taihu.worker.training.pacing import Pacing, forward_shares

SECONDS = st.integers(0, 50).map(float)


@dataclass
class HandClock:
    """Time passes when somebody sleeps, or computes."""

    time: float = 100.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.time += seconds


@given(
    layers=st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=6),
)
def test_a_layer_ends_when_it_would_there_and_waits_come_on_top(layers: list[tuple[float, ...]]) -> None:
    """The last of what was modelled and what passed here, in either half; hooks may wait for others."""
    columns = [list(each) for each in zip(*layers, strict=True)]
    modelled_forward, modelled_backward, forward, backward, before, behind = columns
    clock = HandClock()
    told: list[tuple[str, float]] = []

    def passing(name: str, seconds: list[float]) -> Callable[[int], None]:
        def hook(layer: int) -> None:
            told.append((f"{name} {layer}", clock.time))
            clock.time += seconds[layer]

        return hook

    hooks = StepHooks(
        before_layer=passing("read", before),
        forwarded=lambda _: told.append(("forwarded", clock.time)),
        gradient_ready=passing("ready", behind),
    )
    pacing = Pacing(modelled_forward, modelled_backward, clock)
    paced = pacing.paced(hooks)
    count = len(layers)
    for layer in reversed(range(count)):
        paced.before_layer(layer)
        clock.time += forward[layer]
    paced.forwarded(0.5)
    half = clock.time
    for layer in range(count):
        paced.before_backward(layer)
        clock.time += backward[layer]
        paced.gradient_ready(layer)
    waits = sum(before)
    # What is slow here may be caught up with until the half is over.
    ends = [100.0 + sum(modelled_forward) + waits]
    passed, due = 100.0, 100.0
    for layer in reversed(range(count)):
        passed = max(passed, due) + before[layer] + forward[layer]
        due += before[layer] + modelled_forward[layer]
    assert dict(told)["forwarded"] == max(passed, ends[0])
    passed = due = half
    for layer in range(count):
        due += modelled_backward[layer]
        passed = max(passed + backward[layer], due)
        assert dict(told)[f"ready {layer}"] == passed
        passed += behind[layer]
        due += behind[layer]
    late = max(0.0, dict(told)["forwarded"] - ends[0]) + max(0.0, passed - due)
    assert pacing.late_s == late


def test_what_is_computed_again_takes_a_forward_before_the_gradient() -> None:
    """Layers 2 and 1 are a segment: their forward runs again, behind a wait for parameters of 4 s."""
    clock = HandClock()

    def waits(layer: int) -> None:
        clock.time += 4.0 * (layer == 2)

    told: list[float] = []
    hooks = StepHooks(before_recompute=waits, gradient_ready=lambda layer: told.append(clock.time - 100.0))
    paced = Pacing([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], clock).paced(hooks)
    paced.gradient_ready(0)
    for layer in (2, 1):
        paced.before_recompute(layer)
        clock.time += 0.5
    paced.gradient_ready(1)
    paced.gradient_ready(2)
    assert told == [10.0, 10.0 + 4.0 + 5.0 + 20.0, 10.0 + 4.0 + 5.0 + 20.0 + 30.0]


def test_an_end_takes_what_its_parts_take_and_waits_for_others_come_on_top() -> None:
    clock = HandClock()
    told: list[float] = []

    def arrives() -> None:
        clock.time += 7.0

    hooks = StepHooks(part_computed=lambda layer, part, rows: told.append(clock.time - 100.0))
    end = {("fc1", "forward", 8): 5.0, ("fc1", "input gradient", 8): 6.0, ("fc1", "weight gradients", 16): 1.0}
    paced = Pacing([0.0], [2.0], clock, end).paced(hooks)
    clock.time += 1.0
    paced.part_computed("fc1", "forward", 8)
    paced.wait_for_others(arrives)
    paced.part_computed("fc1", "input gradient", 8)
    clock.time += 3.0  # longer than there, and caught up with by the next layer
    paced.part_computed("fc1", "weight gradients", 16)
    paced.gradient_ready(0)
    assert told == [5.0, 18.0, 21.0]
    assert clock.time == 121.0


def test_a_layers_forward_has_its_share_of_backward() -> None:
    assert forward_shares(6.0, [1.0, 3.0, 0.0]) == (1.5, 4.5, 0.0)
    assert forward_shares(6.0, [0.0, 0.0]) == (3.0, 3.0)


def test_a_paced_run_has_the_bits_of_one_that_is_not_and_no_shorter_steps(tmp_path: Path) -> None:
    flags = ("--model", "small_cnn", "--data", "digits", "--steps", "6", "--workers", "2", "--batch", "4")
    rest = ("--compute", "sw26010", "--set", "train.evaluate=false", "--run-dir", "none", "--json", "result.json")
    hashes = set()
    for pace in ((), ("--set", "cluster.pace=40")):
        done = run_command("taihu", "train", *flags, *rest, *pace, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        results = json.loads((tmp_path / "result.json").read_text())
        hashes.add(results["parameters_sha256"])
    assert len(hashes) == 1
    modelled = results["modelled"]
    assert (modelled["pace"], modelled["late_seconds"] >= 0) == (40, True)
    least = 40 * (modelled["forward_seconds"] + modelled["backward_seconds"])
    assert np.min(results["seconds_per_step"]["min"]) >= 0.999 * least
    assert "steps took 40 times as long" in done.stdout


def test_a_pace_without_a_modelled_processor_has_no_effect(tmp_path: Path) -> None:
    done = run_command("taihu", "job", "--set", "cluster.pace=3", folder=tmp_path)
    assert done.returncode == 0
    assert "cluster.pace = 3.0 has no effect: it is for cluster.compute sw26010" in done.stderr
    wrong = run_command("taihu", "job", "--set", "cluster.pace=0", folder=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr == "error: --set: cluster.pace: expected a number greater than 0 and at most 1000000, got 0\n"


@pytest.mark.parametrize("pace", [1.0, 3.5])
def test_the_simulator_takes_as_long(tmp_path: Path, pace: float) -> None:
    job = ("--set", "model.name=resnet20", "--set", "data.name=synthetic:3x32x32", "--set", "cluster.compute=sw26010")
    flags = (*job, "--nodes", "2", "--network", "ethernet:1gbit", "--json", "out.json")
    seconds = []
    for each in (1.0, pace):
        done = run_command("taihu", "simulate", "run", *flags, "--set", f"cluster.pace={each}", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        seconds.append(json.loads((tmp_path / "out.json").read_text())["seconds_compute"])
    assert seconds[1] == pytest.approx(pace * seconds[0])
