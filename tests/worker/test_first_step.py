"""Kernels and data that forked workers of a job would each load are loaded before: their first step finds them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Loads what jobs need, one of which must not run the user's file, and then does what a worker of the first one does.
SCRIPT = """
import json, sys, threading
import numpy as np
from numba.core.registry import CPUDispatcher
from taihu.core.job import Job
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import StepContext, StepHooks
from taihu.worker.first_step import load_first_step
from taihu.worker.training.evaluation import evaluate
from taihu.worker.training.objective import model_for

def loaded():
    kernels = [each for name, module in list(sys.modules.items()) if name.startswith("taihu.kernels.")
               for each in vars(module).values() if isinstance(each, CPUDispatcher)]
    return sum(len(each.overloads) for each in {id(each): each for each in kernels}.values())

job = Job()
before = loaded()
load_first_step(job)
prepared = loaded()
data = load_dataset(job.data, job.model.name)
model = model_for(job, data)
model.bind(*(np.zeros(model.layout.elements, np.float32) for _ in range(2)))
model.initialize(1)
inputs, targets = Batches(data, batch=32, workers=3, rank=1, seed=1).batch(1)
model.train(inputs, targets, StepContext(training=True, seed=1, step=1, first_sample=32), StepHooks())
evaluate(model, data)
trained = loaded()
load_first_step(Job.model_validate({"model": {"name": sys.argv[1]}}))
load_first_step(Job.model_validate({"model": {"name": "nowhere.py:build"}}))
load_first_step(Job.model_validate({"model": {"name": "vgg16"}, "data": {"name": "cifar10"}}))
print(json.dumps([before, prepared, trained, loaded(), threading.active_count()]))
"""


def test_the_first_step_of_a_worker_finds_its_kernels_loaded(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("raise SystemExit('a file of the user was executed')")
    command = [sys.executable, "-c", SCRIPT, f"{own}:build"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    before, prepared, trained, at_the_end, threads = json.loads(done.stdout)
    assert before < prepared == trained == at_the_end
    assert threads == 1
