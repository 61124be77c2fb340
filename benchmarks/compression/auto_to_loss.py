"""Time to a loss of runs that choose their compression, beside named ways: `python -m benchmarks auto_to_loss`.

One server and three workers on hosts of their own (see `base.network`) train a model on Fashion-MNIST or on
Python's sources. Over fast links every named way learns once, and the dense one at three rates, of which the best
is everybody's: the loss to come to is its best after 80 % of its steps. Over each kind of link `auto` runs to that
loss, with its trials, and so do the named ways that promise to be the fastest: by the steps that they take, and by
the times of a step that `chosen` has measured. What a run takes before its first step, or its first trial, is the
same for all, and left out. Rows that the file of --json holds are not measured again. Needs root, and Debian's
dataset-fashion-mnist.

Examples:
  python -m benchmarks auto_to_loss --json auto.json
  python -m benchmarks auto_to_loss --models resnet20 --rates 100mbit
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.curves import first_at
from benchmarks.base.roles import run_job
from benchmarks.base.rows import load_rows, save_rows
from benchmarks.compression.chosen import chosen
from taihu.core.coordination.plans.choosing import Way, ways
from taihu.core.job.reading import load_job

__all__ = ["Cell", "measure", "table"]

_WORKERS: Final = 3
_AUTO: Final = "auto"
_DENSE: Final = "none"
_FAST: Final = "10gbit"
_FACTORS: Final = (0.5, 1.0, 2.0)
_WINDOW: Final = 10
"""Steps between two points of a curve."""
_SMOOTHED: Final = 5
"""Points of which each is the mean: losses of small batches differ, and are the same batches for all ways."""
_GOAL: Final = 0.8
_NEAR: Final = 1.1
_PROMISES: Final = 1.3
_COMPARED: Final = (_DENSE, "quantized int8", "quantized int4", "dlgs 0.01 fp32", "dlgs 0.01 int4")
_STEPS: Final = Path(__file__).parents[1] / "results" / "chosen.json"
_IMAGES: Final = MappingProxyType({"data.name": "fashion-mnist", "train.batch": 8})


@dataclass(frozen=True)
class Task:
    """A model, its data, its usual rate, and the steps of a dense run."""

    settings: Mapping[str, object]
    rate: float
    steps: int


_TASKS: Final[Mapping[str, Task]] = MappingProxyType(
    {
        "resnet20": Task({"model.name": "resnet20", **_IMAGES}, 0.05, 400),
        "small_gpt": Task(
            {"model.name": "small_gpt", "data.name": "python-source", "train.batch": 2, "optimizer.name": "adamw"},
            0.001,
            400,
        ),
        "vgg16_cifar": Task({"model.name": "vgg16_cifar", **_IMAGES}, 0.01, 100),
    }
)


@dataclass(frozen=True)
class Cell:
    """One run: of a model, over links, by a way or `auto`, at a multiple of the usual rate."""

    model: str
    links: str
    way: str
    factor: float
    seed: int


def _ways(model: str) -> tuple[Way, ...]:
    """The ways that a model's job may choose."""
    sections: dict[str, dict[str, object]] = {"compression": {"method": _AUTO}}
    for key, value in _TASKS[model].settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return tuple(ways(load_job(None, sections)))


def _compared(model: str) -> dict[str, Mapping[str, Any]]:
    """The settings of `[compression]` of named ways, as they go with the other settings of a model's job."""
    return {way.label: way.table for way in _ways(model) if way.label in _COMPARED}


def _chosen(row: Mapping[str, Any]) -> str:
    return chosen(row, _ways(row["model"]))


def measure(cell: Cell) -> dict[str, Any]:
    """The row of a cell: losses of worker 0 and seconds, by windows of steps, and what was chosen."""
    task, compression = (
        _TASKS[cell.model],
        {"method": _AUTO} if cell.way == _AUTO else _compared(cell.model)[cell.way],
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        settings = {
            "train.evaluate": "false",
            "train.seed": cell.seed,
            "train.steps": task.steps,
            "optimizer.learning_rate": task.rate * cell.factor,
            "exchange.transport": "tcp",
            "cluster.servers": 1,
            "cluster.workers": _WORKERS,
            "cluster.threads": 1,
            "cluster.lost_after_s": 120,
            "run.dir": folder,
            **task.settings,
            **{f"compression.{key}": value for key, value in compression.items()},
        }
        launched_s = time.time()
        first = run_job(settings, cell.links, servers=1, workers=_WORKERS)[0]
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        with (folder / "steps.csv").open() as file:
            steps = list(csv.DictReader(file))
    begun = [datetime.fromisoformat(each["time"]).timestamp() for each in events if each["event"] == "training"]
    return {
        **asdict(cell),
        "begun_s": round(begun[-1] - launched_s, 3),
        "losses": [round(each, 4) for each in _by_window(steps, "worker_0_loss")],
        "step_seconds": [round(each, 5) for each in _by_window(steps, "step_seconds")],
        "chosen": first["chosen_compression"] or None,
        "because": first["chosen_because"],
        "load": os.getloadavg()[0],
    }


def _by_window(steps: Sequence[Mapping[str, str]], column: str) -> Iterator[float]:
    """The means of a column over windows of steps."""
    for start in range(0, len(steps), _WINDOW):
        yield fmean(float(step[column]) for step in steps[start : start + _WINDOW])


def _steps_to(row: Mapping[str, Any], goal: float) -> float | None:
    """The steps of a run to a loss; None where it did not come to it."""
    place = first_at(_curve(row), goal)
    return None if place is None else _WINDOW * (place + _SMOOTHED - 1)


def _curve(row: Mapping[str, Any]) -> list[float]:
    """The least loss so far, of means over the last points, from the first step on that has so many behind it."""
    means = map(fmean, zip(*(row["losses"][first:] for first in range(_SMOOTHED)), strict=False))
    return list(accumulate(means, min))


def _seconds_to(row: Mapping[str, Any], goal: float) -> float | None:
    """The seconds of a run's steps to a loss."""
    steps = _steps_to(row, goal)
    if steps is None:
        return None
    whole = int(steps // _WINDOW)
    seconds = row["step_seconds"]
    part = (steps - _WINDOW * whole) * seconds[min(whole, len(seconds) - 1)]
    return float(_WINDOW * sum(seconds[:whole]) + part)


def _goal(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The loss to come to, and the multiple of the rate, of the best dense run over fast links."""
    last = {row["factor"]: round(_GOAL * len(row["losses"])) - _SMOOTHED for row in _dense(rows)}
    ends = {row["factor"]: _curve(row)[last[row["factor"]]] for row in _dense(rows)}
    best = min(ends, key=ends.__getitem__)
    return ends[best], best


def _dense(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row["links"], row["way"]) == (_FAST, _DENSE)]


def _promising(rows: Sequence[Mapping[str, Any]], links: str, step_s: Mapping[str, float]) -> list[str]:
    """The named ways whose steps to the loss, and whose times of a step over `links`, promise the shortest time."""
    goal, factor = _goal(rows)
    learnt = {row["way"]: _steps_to(row, goal) for row in rows if (row["links"], row["factor"]) == (_FAST, factor)}
    prices = {way: steps * step_s[way] for way, steps in learnt.items() if steps is not None and way in step_s}
    return [way for way, price in prices.items() if price <= _PROMISES * min(prices.values())]


@dataclass(frozen=True)
class _Beside:
    """A run of `auto` beside the best of the named ways: seconds to the loss, None where it did not come there."""

    own_s: float | None
    trials_s: float
    best: str
    best_s: float

    def ratio(self, *, with_trials: bool) -> float | None:
        """Its seconds as multiples of the best way's."""
        more_s = self.trials_s if with_trials else 0.0
        return None if self.own_s is None else (self.own_s + more_s) / self.best_s


def _beside(auto: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> _Beside:
    """A run of `auto` and the best among `rows` of the same model and seed."""
    goal, factor = _goal(rows)
    named = [row for row in rows if row["way"] != _AUTO and (row["links"], row["factor"]) == (auto["links"], factor)]
    seconds = {row["way"]: each for row in named if (each := _seconds_to(row, goal)) is not None}
    best = min(seconds, key=seconds.__getitem__)
    trials_s = auto["begun_s"] - median(row["begun_s"] for row in named)
    return _Beside(_seconds_to(auto, goal), trials_s, best, seconds[best])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The cells as Markdown: seconds to the loss by what `auto` chose, and by the best of the named ways."""
    lines = [
        "| model, loss | links | seed | chosen | trials, s | its seconds | best | best's seconds | with trials "
        "| without |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    near = {True: 0, False: 0}
    for auto in (row for row in rows if row["way"] == _AUTO):
        of_model = [row for row in rows if (row["model"], row["seed"]) == (auto["model"], auto["seed"])]
        found = _beside(auto, of_model)
        own = "not there" if found.own_s is None else f"{found.own_s:.1f}"
        words = []
        for with_trials in near:
            ratio = found.ratio(with_trials=with_trials)
            words.append("-" if ratio is None else f"{ratio:.2f}")
            near[with_trials] += ratio is not None and ratio <= _NEAR
        lines.append(
            f"| {auto['model']}, {_goal(of_model)[0]:.3f} | {auto['links']} | {auto['seed']} | {_chosen(auto)} "
            f"| {found.trials_s:.1f} | {own} | {found.best} | {found.best_s:.1f} | {' | '.join(words)} |"
        )
    cells = f"{near[False]} of {len(lines) - 2} cells the choice is the best, or within 10 % of that"
    return "\n".join([*lines, "", f"In {cells}; with its trials in {near[True]}."])


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(_TASKS), help="comma-separated")
    parser.add_argument("--rates", default=f"{_FAST},1gbit,100mbit,10mbit")
    parser.add_argument("--seeds", default="1", help="comma-separated")
    parser.add_argument("--json", type=Path, help="rows that the file holds are not measured again")
    parser.add_argument("--steps", type=Path, default=_STEPS, metavar="FILE", help="rows of chosen")
    options = parser.parse_args()
    rows, timed = load_rows(options.json), load_rows(options.steps)

    def of(model: str, seed: int) -> list[dict[str, Any]]:
        return [row for row in rows if (row["model"], row["seed"]) == (model, seed)]

    def run(cell: Cell) -> None:
        if all(cell != Cell(*(row[name] for name in Cell.__dataclass_fields__)) for row in rows):
            rows.append(measure(cell))
            save_rows(options.json, rows)
            last = rows[-1]
            print(f"{cell} ({_chosen(last)}): {1e3 * median(last['step_seconds']):.1f} ms", flush=True)

    for seed in map(int, options.seeds.split(",")):
        for model in options.models.split(","):
            for factor in _FACTORS:
                run(Cell(model, _FAST, _DENSE, factor, seed))
            _, factor = _goal(of(model, seed))
            for way in _compared(model):
                run(Cell(model, _FAST, way, factor, seed))
            for links in options.rates.split(","):
                run(Cell(model, links, _AUTO, factor, seed))
                own = [row for row in timed if (row["model"], row["rate"]) == (model, links)]
                step_s = {chosen(row): row["step_seconds"] for row in own}
                for way in _promising(of(model, seed), links, step_s):
                    run(Cell(model, links, way, factor, seed))
    print(table(rows))


if __name__ == "__main__":
    main()
