"""Steps of DLGS with thresholds by layer beside steps with thresholds by group, in one run of each cell.

Runs of the same job differ by more than these two do, so they take turns within a run, a few steps each
(`benchmarks.worker_in_turns`). `python -m benchmarks.compression --thresholds` measures.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.roles import run_job
from benchmarks.worker_in_turns import BLOCK, THRESHOLDS, turn_of

__all__ = ["CELLS", "Cell", "Ratio", "blocks_of", "measure_in_turns", "ratio_of", "told"]

_DRAWS = 4000
_OTHERWISE_PLANNED_AGAIN = 1_000_000


class Cell(NamedTuple):
    """A model, its links and density, the steps of a calibration and pairs of blocks behind it."""

    model: str
    rate: str
    density: float
    calibration: int
    pairs: int


CELLS = (
    Cell("vgg16_cifar", "100mbit", 0.01, 8, 14),
    Cell("vgg16_cifar", "100mbit", 0.1, 4, 6),
    Cell("vgg16_cifar", "1gbit", 0.01, 8, 18),
    Cell("vgg16_cifar", "1gbit", 0.1, 8, 14),
    Cell("resnet20", "100mbit", 0.01, 20, 80),
    Cell("resnet20", "100mbit", 0.1, 20, 60),
    Cell("resnet20", "1gbit", 0.01, 20, 80),
    Cell("resnet20", "1gbit", 0.1, 20, 80),
)
"""Those of docs/compression.md, a minute or two each."""


class Ratio(NamedTuple):
    """The ratio of two medians, and the bounds that 95 % of the ratios of drawn blocks lie in."""

    value: float
    low: float
    high: float


def measure_in_turns(cell: Cell, settings: Mapping[str, object], extra: Sequence[str]) -> dict[str, Any]:
    """One row: the seconds of worker 0's steps, blocks of them by threshold; `settings` are those of every cell."""
    first = _first_step(cell.calibration)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        own = {
            "model.name": cell.model,
            # The last step waits for its own answers, which no other does.
            "train.steps": first + cell.pairs * BLOCK * len(THRESHOLDS),
            "exchange.plan": "auto",
            "exchange.calibration_steps": cell.calibration,
            "exchange.replan_every": _OTHERWISE_PLANNED_AGAIN,
            "compression.method": "dlgs",
            "compression.density": cell.density,
            "run.dir": run,
            "run.save": "none",
        }
        worker = ("-m", "benchmarks.worker_in_turns")
        workers = int(str(settings["cluster.workers"]))
        results = run_job({**settings, **own}, cell.rate, servers=1, workers=workers, extra=extra, worker=worker)
        with (run / "steps.csv").open() as file:
            seconds = {int(row["step"]): float(row["step_seconds"]) for row in csv.DictReader(file)}
    blocks = blocks_of(seconds, first, cell.pairs)
    return {"model": cell.model, "rate": cell.rate, "density": cell.density, "groups": results[0]["groups"], **blocks}


def _first_step(calibration: int) -> int:
    """The first step behind both calibrations that begins a pair of blocks."""
    pair = BLOCK * len(THRESHOLDS)
    return -(-2 * calibration // pair) * pair + 1


def blocks_of(seconds: Mapping[int, float], first: int, pairs: int) -> dict[str, list[list[float]]]:
    """By threshold its blocks of steps from `first` on, each without its first step."""
    blocks: dict[str, list[list[float]]] = {name: [] for name in THRESHOLDS}
    for begin in range(first, first + pairs * BLOCK * len(THRESHOLDS), BLOCK):
        blocks[THRESHOLDS[turn_of(begin)]].append([seconds[step] for step in range(begin + 1, begin + BLOCK)])
    return blocks


def ratio_of(blocks: Mapping[str, Sequence[Sequence[float]]]) -> Ratio:
    """The median step by layer over that by group; drawn are pairs of neighbouring blocks, with replacement."""
    times = np.array([blocks[name] for name in THRESHOLDS])
    drawn = np.random.default_rng(0).integers(times.shape[1], size=(_DRAWS, times.shape[1]))
    by_layer, by_group = np.median(times[:, drawn].reshape(len(times), _DRAWS, -1), axis=-1)
    low, high = np.quantile(by_layer / by_group, (0.025, 0.975))
    layer, group = np.median(times.reshape(len(times), -1), axis=-1)
    return Ratio(float(layer / group), float(low), float(high))


def told(rows: Sequence[Mapping[str, Any]]) -> str:
    """The cells as Markdown."""
    lines = [
        "| model | links | density | groups | steps of each | by layer, s | by group, s | layer / group | 95 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        steps = [np.ravel(row[name]) for name in THRESHOLDS]
        layer, group = map(np.median, steps)
        ratio = ratio_of(row)
        lines.append(
            f"| {row['model']} | {row['rate']} | {row['density']:g} | {row['groups']} | {len(steps[0])} "
            f"| {layer:.4f} | {group:.4f} | {ratio.value:.3f} | {ratio.low:.3f} to {ratio.high:.3f} |"
        )
    return "\n".join(lines)
