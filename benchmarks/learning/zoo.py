"""Every model of the zoo on every built-in data set, by its own defaults: the loss must stay finite and fall.

    python -m benchmarks zoo --steps 20 --data digits,synthetic:1x28x28,synthetic:3x32x32

One process, the engine and the optimizer of a run, no exchange. Exits with 1 when a loss does not fall.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
from threadpoolctl import threadpool_limits

from taihu.core.job import load_job
from taihu.core.model.names import MODEL_NAMES
from taihu.core.optimization import OptimizerShard
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import StepContext, StepHooks, build_model

_EDGE = 3


def losses_of(model_name: str, data: str, path: Path | None, steps: int, batch: int) -> list[float]:
    """The training loss of each step, by the defaults of a job that names model and data alone."""
    section = {"name": data, "path": path} if path is not None and not data.startswith(("digits", "syn")) else {}
    job = load_job(
        None, {"model": {"name": model_name}, "data": section or {"name": data}, "train": {"batch": batch}}
    )
    dataset = load_dataset(job.data, job.model.name)
    model = build_model(job.model.name, dataset.input_shape, dataset.outputs)
    parameters, gradients = np.zeros((2, model.layout.elements), np.float32)
    model.bind(parameters, gradients)
    model.initialize(job.train.seed)
    model.use_threads(2)
    optimizer = OptimizerShard(job.optimizer, parameters)
    batches = Batches(dataset, batch=batch, workers=1, rank=0, seed=job.train.seed)
    losses = []
    for step in range(1, steps + 1):
        context = StepContext(training=True, seed=job.train.seed, step=step, first_sample=0)
        losses.append(model.train(*batches.batch(step), context, StepHooks()))
        optimizer.update(0, len(parameters), gradients, step)
    return losses


def main() -> int:
    """Print a row for each pair; 1 when a loss does not fall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(name for name in MODEL_NAMES if name != "small_gpt"))
    parser.add_argument("--data", default="digits,synthetic:1x28x28,synthetic:3x32x32")
    parser.add_argument("--data-path", type=Path, help="where the files of fashion-mnist or cifar10 lie")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    failed = 0
    for model in arguments.models.split(","):
        for data in arguments.data.split(","):
            with threadpool_limits(1):
                losses = losses_of(model, data, arguments.data_path, arguments.steps, arguments.batch)
            first, last = fmean(losses[:_EDGE]), fmean(losses[-_EDGE:])
            falls = last < first and bool(np.isfinite(losses).all())
            failed += not falls
            print(
                f"{model:<14} {data:<18} {first:7.3f} -> {last:7.3f}  {'falls' if falls else 'DOES NOT FALL'}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
