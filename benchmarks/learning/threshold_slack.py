"""Thresholds of DLGS, reused for longer or shorter: `python -m benchmarks threshold_slack --help`.

A cell is one model trained by DLGS at one density from one seed, by the three workers of `accuracy_by_method`, with
an exact threshold every s steps, and in between wherever the count leaves the slack; `none` is the printed algorithm.
The exact share is that of all selections which made their threshold anew, the sent share that of all values over the
density, the peak that of the step that sent most. Momentum is where the product has it, and on the workers, as the
papers have it. The score is the accuracy in %, of texts the perplexity. Cells that the file holds are not trained
again.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from benchmarks.base.rows import load_rows, publish, train_missing
from benchmarks.learning.accuracy_by_method import JOBS as OF_METHODS
from benchmarks.learning.workers_in_turns import train_on_first
from taihu.core.job import Job

__all__ = ["JOBS", "Cell", "cells", "table", "train"]

_PAGE = "measured by benchmarks.learning.threshold_slack"
_WORKERS = 3
_SEEDS = 3
_GPT: dict[str, Any] = {
    "data": {"name": "python-source"},
    "train": {"epochs": 1},
    "optimizer": {"name": "adam", "learning_rate": 1e-3, "warmup_steps": 20},
}
JOBS: Mapping[str, tuple[int, int, dict[str, Any]]] = MappingProxyType(
    {
        **{name: (images, 16, job) for name, (images, job) in OF_METHODS.items()},
        "small_gpt": (1200, 4, _GPT),
    }
)
"""By model: the number of examples to train on, those of a worker's batch, and the job."""

_DENSITIES = (0.1, 0.01)
_REUSED = (16, 32, 64)
_SLACKS: tuple[float | str, ...] = ("none", 1.0, 0.25)


@dataclass(frozen=True)
class Cell:
    """One training."""

    model: str
    density: float
    refresh_every: int
    slack: float | str
    momentum_at: str
    seed: int


def cells(models: Sequence[str], seeds: int) -> Iterator[Cell]:
    """All cells, those of the first seed before others."""
    for seed in range(1, seeds + 1):
        for model, density, every, slack in itertools.product(models, _DENSITIES, _REUSED, _SLACKS):
            yield Cell(model, density, every, slack, "auto", seed)
        # Workers apply no moments of Adam.
        of_sgd = [model for model in models if "name" not in JOBS[model][2]["optimizer"]]
        for model, density, slack in itertools.product(of_sgd, _DENSITIES, _SLACKS):
            yield Cell(model, density, 32, slack, "workers", seed)


def job_of(cell: Cell) -> Job:
    """The job of a cell."""
    _, batch, sections = JOBS[cell.model]
    optimizer = sections["optimizer"]
    momentum = {} if "name" in optimizer else {"momentum": 0.9}
    return Job.model_validate(
        {
            **sections,
            "model": {"name": cell.model},
            "train": {**sections["train"], "batch": batch, "seed": cell.seed},
            "optimizer": {**momentum, **optimizer},
            "compression": {
                "method": "dlgs",
                "density": cell.density,
                "refresh_every": cell.refresh_every,
                "threshold_slack": cell.slack,
                "momentum_at": cell.momentum_at,
            },
            "exchange": {"plan": "bucket:100kB"},
            "cluster": {"servers": 1, "workers": _WORKERS, "threads": 1},
        }
    )


def train(cell: Cell, path: Path | None = None) -> dict[str, Any]:
    """Train one cell: score, loss, shares and the seconds of one worker's selections in a step."""
    done = train_on_first(job_of(cell), JOBS[cell.model][0], path)
    units = done["thresholds"]
    # The first threshold of each is exact, and has changed from nothing.
    exact = sum(unit["refreshes"] + 1 for unit in units) / sum(unit["updates"] for unit in units)
    shares = {"exact_share": exact, "sent_ratio": done["selected_ratio"], "peak_ratio": done["peak_ratio"]}
    last = done["epochs"][-1]
    score = 100 * last["test_accuracy"] if "test_accuracy" in last else last["test_perplexity"]
    return {
        **asdict(cell),
        "score": score,
        "test_loss": last["test_loss"],
        **shares,
        "select_seconds": done["select_seconds"],
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over seeds as Markdown, a line for each setting."""
    lines = [
        "| model | density | momentum | s | slack | score | by seed | loss | exact | sent | peak | ms |",
        "|---|---:|---|---:|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    keys = ("model", "density", "momentum_at", "refresh_every", "slack")
    for key in sorted(dict.fromkeys(tuple(row[name] for name in keys) for row in rows), key=_order):
        found = [row for row in rows if tuple(row[name] for name in keys) == key]
        model, density, momentum_at, every, slack = key
        mean = {name: fmean(row[name] for row in found) for name in _MEANS}
        scores = [f"{row['score']:.2f}" for row in found]
        where = "nobody's" if momentum_at == "auto" else "workers'"
        lines.append(
            f"| {model} | {density:g} | {where} | {every} | {slack} | {mean['score']:.2f} "
            f"| {', '.join(scores)} | {mean['test_loss']:.3f} | {mean['exact_share']:.1%} "
            f"| {mean['sent_ratio']:.4f} | {max(row['peak_ratio'] for row in found):.3f} "
            f"| {1e3 * median(row['select_seconds'] for row in found):.2f} |"
        )
    return "\n".join(lines)


_MEANS = ("score", "test_loss", "exact_share", "sent_ratio")


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    model, density, momentum_at, every, slack = key
    return list(JOBS).index(model), -density, momentum_at, every, _SLACKS.index(slack)


def main() -> None:
    """Train the cells that are missing, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(JOBS), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=_SEEDS)
    parser.add_argument("--json", type=Path, help="cells that the file holds are not trained again")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    parser.add_argument("--path", type=Path, help="the folder of Fashion-MNIST")
    parser.add_argument("--cell", help="train this one, an object of JSON, and print its row")
    options = parser.parse_args()
    if options.cell is not None:
        print(json.dumps(train(Cell(**json.loads(options.cell)), options.path)))
        return
    rows = load_rows(options.json)
    train_missing(
        "threshold_slack",
        cells(options.models.split(","), options.seeds),
        rows,
        options.json,
        options.path,
        lambda row: f"{row['score']:.2f}, exact {row['exact_share']:.1%}",
    )
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
