"""A worker whose process lives, beats, and gets on no more: the run goes on without it, or ends and names it."""

from __future__ import annotations

import json
from pathlib import Path

from support.commands import run_command

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


def test_a_run_goes_on_without_a_worker_that_is_stuck(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    keeping = ("--set", "checkpoint.every_steps=5")
    done = run_command("taihu", "train", *RING, *FLAGS, *IMPATIENT, *keeping, "--json", "a.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said = "worker 1 was killed by SIGKILL; another process takes its place, and all go on after step 9"
    assert said in done.stdout
    whole = run_command("taihu", "train", *RING, *FLAGS, "--run-dir", "none", "--json", "b.json", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    hashes = [json.loads((tmp_path / name).read_text())["parameters_sha256"] for name in ("a.json", "b.json")]
    assert hashes[0] == hashes[1]


def test_a_run_without_checkpoints_ends_and_names_the_worker_that_is_stuck(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    done = run_command("taihu", "train", "--servers", "1", *FLAGS, *IMPATIENT, "--run-dir", "none", folder=tmp_path)
    assert done.returncode == 1
    said = "nothing has moved for 12 s: worker 1 has step 8 behind it, and waits for nobody, worker 0 waits for "
    assert said in done.stderr
