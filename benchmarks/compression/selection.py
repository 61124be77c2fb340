"""CPU time of a step's selection, by layer and by group: `python -m benchmarks selection --help`.

One worker's compression of all groups of a step (accumulate, select, keep the rest; nothing is packed or sent) for
layers of the sizes of real models, with thresholds by layer and by group, in turns. The gradients are noise with a
scale of its own for each layer, and nothing is held back before a step. *reused* is a step no threshold of which is
due (small layers make theirs anew all the same, where they select too much or too little), *exact* one that makes all
anew. The floor is a pass that reads gradient and residual and writes the residual, over the same memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.base.rows import save_rows
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import plan_groups
from taihu.core.planner.model_shapes import layer_table
from taihu.worker.exchange.making import compressor_of
from taihu.worker.memory.arenas import arenas_of

__all__ = ["measure"]

_GRADIENTS = 2
_WARM_UP = 4
_THRESHOLDS = ("layer", "group")
_KINDS = (("reused", 10**6), ("exact", 1))


class Steps:
    """Steps of one worker's compression."""

    def __init__(self, layout: Layout, strategy: str, threshold: str, density: float, refresh_every: int) -> None:
        compression = {"method": "dlgs", "density": density, "threshold": threshold, "refresh_every": refresh_every}
        job = Job.model_validate({"compression": compression, "optimizer": {"momentum": 0.0}})
        self._arenas = arenas_of(job, layout.elements)
        self._groups = plan_groups(layout, strategy)
        self._compressor = compressor_of(
            job, Plan(1, 1, self._groups, layout, 1_000_000, world=job.world), self._arenas
        )
        self._done = self.units = self.refreshed = 0

    def run(self, gradient: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
        """The CPU seconds of a step with `gradient`, of all of this process's threads."""
        self._compressor.state.residual[:] = 0.0
        np.copyto(self._arenas.gradients, gradient)
        self._done += 1
        start = time.process_time()
        outcomes = [self._compressor.compress(group, self._done).outcome for group in range(len(self._groups))]
        seconds = time.process_time() - start
        self.units += sum(len(outcome.units) for outcome in outcomes)
        self.refreshed += sum(int(outcome.refreshed.sum()) for outcome in outcomes)
        return seconds


def measure(model: str, strategy: str, density: float, rounds: int) -> list[dict[str, Any]]:
    """A row for each of layer and group: the least and the median CPU seconds of a step."""
    layout = layer_table(model)
    random = np.random.default_rng(1)
    gradients = random.standard_normal((_GRADIENTS, layout.elements), dtype=np.float32)
    for start, stop in zip(layout.offsets, layout.offsets[1:], strict=False):
        gradients[:, start:stop] *= np.float32(random.lognormal())
    settings = {
        (threshold, kind): Steps(layout, strategy, threshold, density, refresh_every)
        for threshold in _THRESHOLDS
        for kind, refresh_every in _KINDS
    }
    residual = np.zeros(layout.elements, dtype=np.float32)
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(-_WARM_UP, rounds):
        gradient = gradients[turn % _GRADIENTS]
        for steps in settings.values() if turn == 0 else ():
            steps.units = steps.refreshed = 0
        residual[:] = 0.0
        begin = time.process_time()
        np.add(residual, gradient, out=residual)
        taken = {("floor", ""): time.process_time() - begin}
        taken |= {name: steps.run(gradient) for name, steps in settings.items()}
        for name, value in taken.items() if turn >= 0 else ():
            seconds.setdefault(name, []).append(value)
    return [
        {
            "model": model,
            "layers": len(layout.layers),
            "elements": layout.elements,
            "groups": len(plan_groups(layout, strategy)),
            "density": density,
            "threshold": threshold,
            "refreshed_ratio": settings[threshold, "reused"].refreshed / settings[threshold, "reused"].units,
            **{f"{kind}_seconds": _spread(seconds[threshold, kind]) for kind, _ in _KINDS},
            "floor_seconds": _spread(seconds["floor", ""]),
        }
        for threshold in _THRESHOLDS
    ]


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, the least of each in milliseconds: others' work only adds to it."""
    lines = [
        "| model | layers | elements | groups | density | threshold | reused, ms | made anew early | exact, ms "
        "| floor, ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row['model']} | {row['layers']} | {row['elements']:,} | {row['groups']} | {row['density']:g}"
        reused, exact, floor = (1e3 * row[f"{kind}_seconds"]["min"] for kind in ("reused", "exact", "floor"))
        lines.append(
            f"{head} | {row['threshold']} | {reused:.3f} | {row['refreshed_ratio']:.0%} | {exact:.3f} | {floor:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet20,vgg16_cifar,resnet50", help="comma-separated tables of layers")
    parser.add_argument("--densities", default="0.1,0.01", help="comma-separated")
    parser.add_argument("--plan", default="single", help="how layers are merged: per-layer, single or bucket:SIZE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for model in options.models.split(","):
        for density in options.densities.split(","):
            rows += measure(model, options.plan, float(density), options.rounds)
    save_rows(options.json, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
