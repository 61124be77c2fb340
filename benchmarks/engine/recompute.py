"""Memory and time of training that recomputes activations: `python -m benchmarks recompute --help`.

The engine alone trains models of the zoo on random images; bytes are those of all its buffers, times the best step.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from taihu.worker.engine import StepContext, StepHooks, build_model

__all__ = ["measure"]

_WAYS = ("none", "memory", "spill")
_SHAPE = (32, 32, 3)
_CLASSES = 10


def measure(name: str, batch: int, way: str, steps: int) -> tuple[float, int]:
    """Seconds of the best step, and bytes held."""
    model = build_model(name, _SHAPE, _CLASSES)
    if way != "none":
        model.recompute(spill=way == "spill")
    parameters = np.zeros(model.layout.elements, dtype=np.float32)
    model.bind(parameters, np.zeros_like(parameters))
    model.initialize(1)
    rng = np.random.default_rng(1)
    images = rng.standard_normal((batch, *_SHAPE), dtype=np.float32)
    labels = rng.integers(0, _CLASSES, batch)
    best = np.inf
    for step in range(1, steps + 1):
        start = time.perf_counter()
        model.train(images, labels, StepContext(training=True, seed=1, step=step, first_sample=0), StepHooks())
        best = min(best, time.perf_counter() - start)
    return float(best), model.held_bytes


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet20:64,vgg16_cifar:32,cifar10_quick:64", help="NAME:BATCH,...")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    print("| model, batch | way | step ms | over none | MB held |")
    print("|---|---|---|---|---|")
    for item in options.models.split(","):
        name, _, batch = item.partition(":")
        first = 0.0
        for way in _WAYS:
            seconds, held = measure(name, int(batch), way, options.steps)
            first = first or seconds
            print(f"| {name}, {batch} | {way} | {seconds * 1e3:.1f} | {seconds / first:.2f} | {held / 1e6:.1f} |")


if __name__ == "__main__":
    main()
