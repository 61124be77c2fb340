"""A worker whose process lives, beats, and gets on no more: the run goes on without it, or ends and names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support.commands import PATIENCE_S, Command
from support.daemons import wait_for

# Waits for ever in its tenth step, once.
MODEL = """
import sys, time
from pathlib import Path
from taihu.worker.engine import Flatten, Layer, Linear, Sequential

class Stuck(Layer):
    steps = 0

    def build(self, name, input_shape):
        self.name = name
        return input_shape

    def forward(self, x, run):
        self.steps += 1
        stuck = Path(__file__).with_name("stuck")
        if self.steps == 10 and sys.argv[sys.argv.index("--rank") + 1] == "1" and "worker" in sys.argv[0]:
            if not stuck.exists():
                stuck.touch()
                time.sleep(3600)
        return x

    def backward(self, dy, run):
        return dy

def build(input_shape, outputs):
    return Sequential([Flatten(), Stuck(), Linear(outputs)])
"""
FLAGS = ("--model", "model.py:build", "--workers", "2", "--steps", "30", "--set", "train.evaluate=false")
# Less, and on a busy machine another one is taken for lost.
IMPATIENT = ("--set", "cluster.lost_after_s=3", "--set", "cluster.heartbeat_s=0.1")
RING = ("--exchange", "ring")
RUNS = {
    "keeping": (*RING, *IMPATIENT, "--set", "checkpoint.every_steps=5"),
    "not keeping": ("--servers", "1", *IMPATIENT, "--run-dir", "none"),
    "undisturbed": (*RING, "--run-dir", "none"),
}


@dataclass(frozen=True)
class Ended:
    """A run that has ended, in a folder of its own."""

    returncode: int | None
    stdout: str
    stderr: str
    folder: Path

    @property
    def parameters(self) -> str:
        return str(json.loads((self.folder / "end.json").read_text())["parameters_sha256"])


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Ended]:
    """All runs: each begins when the one before waits for its worker, so that they wait at the same time."""
    with ExitStack() as stack:
        running: dict[str, tuple[Command, Path]] = {}
        for name, flags in RUNS.items():
            folder = tmp_path_factory.mktemp("run")
            (folder / "model.py").write_text(MODEL)
            if name == "undisturbed":
                (folder / "stuck").touch()
            process = Command("taihu", "train", *FLAGS, *flags, "--json", "end.json", folder=folder)
            stack.callback(process.kill)
            running[name] = process, folder
            wait_for(partial(is_stuck, process, folder), "no worker is stuck")
        return {name: end(*each) for name, each in running.items()}


def is_stuck(process: Command, folder: Path) -> bool:
    return process.poll() is not None or (folder / "stuck").exists()


def end(process: Command, folder: Path) -> Ended:
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return Ended(process.returncode, stdout, stderr, folder)


def test_a_run_goes_on_without_a_worker_that_is_stuck(ended: Mapping[str, Ended]) -> None:
    done = ended["keeping"]
    assert done.returncode == 0, done.stderr
    said = "worker 1 was killed by SIGKILL; another process takes its place, and all go on after step 9"
    assert said in done.stdout
    whole = ended["undisturbed"]
    assert whole.returncode == 0, whole.stderr
    assert done.parameters == whole.parameters


def test_a_run_without_checkpoints_ends_and_names_the_worker_that_is_stuck(ended: Mapping[str, Ended]) -> None:
    done = ended["not keeping"]
    assert done.returncode == 1
    said = "nothing has moved for 12 s: worker 1 has step 8 behind it, and waits for nobody, worker 0 waits for "
    assert said in done.stderr
