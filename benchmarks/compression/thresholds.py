"""Steps of DLGS with thresholds by layer beside steps with thresholds by group, in one run of each cell.

Runs of the same job differ by more than these two do, so they take turns within a run, a few steps each
(`compression.worker_in_turns`). `python -m benchmarks compression --thresholds` measures.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.base.roles import run_job
from benchmarks.compression.worker_in_turns import BLOCK, THRESHOLDS, turn_of

__all__ = ["CELLS", "COMPUTE", "Cell", "Ratio", "blocks_of", "data_and_model", "measure_in_turns", "ratio_of", "told"]

_DRAWS = 1000
_OTHERWISE_PLANNED_AGAIN = 1_000_000


class Cell(NamedTuple):
    """A model, its links and density, the steps of a calibration and pairs of blocks behind it."""

    model: str
    rate: str
    density: float
    calibration: int
    pairs: int


CELLS = (
    Cell("vgg16_cifar", "100mbit", 0.01, 8, 40),
    Cell("vgg16_cifar", "100mbit", 0.1, 4, 12),
    Cell("vgg16_cifar", "1gbit", 0.01, 8, 50),
    Cell("vgg16_cifar", "1gbit", 0.1, 8, 40),
    Cell("resnet20", "100mbit", 0.01, 20, 80),
    Cell("resnet20", "100mbit", 0.1, 20, 60),
    Cell("resnet20", "1gbit", 0.01, 20, 80),
    Cell("resnet20", "1gbit", 0.1, 20, 80),
)
"""Those of docs/compression.md, a minute or two each."""


_PACED = "benchmarks/models/paced.py"
COMPUTE = ("real", "modelled")


class Ratio(NamedTuple):
    """The ratio of two medians, and the bounds that 95 % of the ratios of drawn blocks lie in."""

    value: float
    low: float
    high: float


def data_and_model(model: str, compute: str) -> dict[str, object]:
    """Settings of a model of the zoo, or of its layers whose computing is modelled."""
    if compute == "real":
        return {"model.name": model, "data.name": "synthetic:3x32x32"}
    return {"model.name": f"{_PACED}:{model}", "data.name": "synthetic:128x1x1"}


def measure_in_turns(
    cell: Cell, compute: str, settings: Mapping[str, object], extra: Sequence[str]
) -> dict[str, Any]:
    """One row: the seconds of worker 0's steps, blocks of them by threshold, and the mean bytes that it moves in one.

    `settings` are those of every cell. Where computing is `modelled`, gradients are noise that takes as long: then
    workers do not disturb each other by anything that the two have in common.
    """
    first = _first_step(cell.calibration)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        asked = {
            **data_and_model(cell.model, compute),
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
        worker = ("-m", "benchmarks.compression.worker_in_turns")
        workers = int(str(settings["cluster.workers"]))
        results = run_job({**settings, **asked}, cell.rate, servers=1, workers=workers, extra=extra, worker=worker)
        with (run / "steps.csv").open() as file:
            steps = list(csv.DictReader(file))
    seconds, sent, received = (
        blocks_of({int(step["step"]): float(step[column]) for step in steps}, first, cell.pairs)
        for column in ("step_seconds", "sent_bytes", "received_bytes")
    )
    moved = {f"{name}_bytes": float(np.mean(sent[name]) + np.mean(received[name])) for name in THRESHOLDS}
    own = {
        "compute": compute,
        "model": cell.model,
        "rate": cell.rate,
        "density": cell.density,
        "groups": results[0]["groups"],
    }
    return {**own, **moved, **seconds}


def _first_step(calibration: int) -> int:
    """The first step behind both calibrations that begins a pair of blocks."""
    pair = BLOCK * len(THRESHOLDS)
    return -(-2 * calibration // pair) * pair + 1


def blocks_of(steps: Mapping[int, float], first: int, pairs: int) -> dict[str, list[list[float]]]:
    """By threshold its blocks of steps from `first` on, each without its first step."""
    blocks: dict[str, list[list[float]]] = {name: [] for name in THRESHOLDS}
    for begin in range(first, first + pairs * BLOCK * len(THRESHOLDS), BLOCK):
        blocks[THRESHOLDS[turn_of(begin)]].append([steps[step] for step in range(begin + 1, begin + BLOCK)])
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
    columns = "compute", "model", "links", "density", "groups", "steps of each", "by layer, s", "by group, s", "ratio"
    lines = [f"| {' | '.join((*columns, '95 %'))} |", "|" + "---|" * (len(columns) + 1)]
    for row in rows:
        steps = [np.ravel(row[name]) for name in THRESHOLDS]
        layer, group = map(np.median, steps)
        ratio = ratio_of(row)
        lines.append(
            f"| {row['compute']} | {row['model']} | {row['rate']} | {row['density']:g} | {row['groups']} "
            f"| {len(steps[0])} | {layer:.4f} | {group:.4f} | {ratio.value:.3f} "
            f"| {ratio.low:.3f} to {ratio.high:.3f} |"
        )
    return "\n".join(lines)
