"""The choices of `compression.method = auto` beside named ways, over shaped links: `python -m benchmarks chosen`.

One server and three workers on hosts of their own (see `base.network`) train a model on computed data. Each way has a
run, and another one where it is chosen; its price is the median of their steps, times the steps that it takes a
model of its kind to a loss, as multiples of the dense ones: those of `torch_time_to_loss`, which `auto` does not
know, for selections; those that it takes for granted for others. A row is a cell: the price of what `auto` has chosen
beside the best one. Trials are not in it. Rates come from the fastest on; a way that costs three times the best one
is not run at slower rates, where it only costs more. Runs that the file of --json holds are not measured again.

Examples:
  python -m benchmarks chosen --json benchmarks/results/chosen.json --docs docs/compression.md
  python -m benchmarks chosen --models resnet20 --rates 100mbit
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.roles import run_job
from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.learning.steps_to_loss import DENSE, goal_of, learning, steps_to
from taihu.core.coordination.plans.choosing import Way, ways
from taihu.core.job.reading import load_job

__all__ = ["chosen", "measure", "table"]

_PAGE: Final = "measured by benchmarks.compression.chosen"
_WORKERS: Final = 3
_CALIBRATION: Final = 6
_CALIBRATION_OF_AUTO: Final = 10
_AUTO: Final = "auto"
_WHOLE: Final = "none"
_HOPELESS: Final = 3.0
_NEAR: Final = 1.1
_DATA: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "resnet20": {"model.name": "resnet20", "data.name": "synthetic:3x32x32", "train.batch": 8},
        "vgg16_cifar": {"model.name": "vgg16_cifar", "data.name": "synthetic:3x32x32", "train.batch": 8},
        "small_gpt": {"model.name": "small_gpt", "data.name": "python-source", "train.batch": 2},
    }
)
"""Settings of each model."""
_COMPARED: Final = (
    "none",
    "quantized int8",
    "quantized int4",
    "dlgs 0.01 fp32",
    "dlgs 0.01 int4",
)


_LIKE: Final[Mapping[str, str]] = MappingProxyType(
    {"resnet20": "resnet20", "vgg16_cifar": "vgg16", "small_gpt": "transformer"}
)
"""The model of `torch_time_to_loss` that is of a model's kind."""
_LEARNT: Final = MappingProxyType(
    {"dlgs 0.01 fp32": "taihu, dlgs 0.01", "dlgs 0.01 int4": "taihu, dlgs 0.01, int4 both ways"}
)
"""The way there of a way here."""
_RUNS: Final = Path(__file__).parents[1] / "results" / "torch_time_to_loss.json"


def _ways() -> dict[str, Way]:
    """The ways that a run may choose, by their labels."""
    return {way.label: way for way in ways(load_job(None, {"compression": {"method": _AUTO}}))}


def measure(model: str, rate: str, label: str, steps: int) -> dict[str, Any]:
    """A row; times are worker 0's."""
    table = {"method": _AUTO} if label == _AUTO else _ways()[label].table
    calibration = _CALIBRATION_OF_AUTO if label == _AUTO else _CALIBRATION
    settings = {
        "train.evaluate": "false",
        "optimizer.learning_rate": 0.001,
        "exchange.transport": "tcp",
        "exchange.calibration_steps": calibration,
        "cluster.servers": 1,
        "cluster.workers": _WORKERS,
        "cluster.threads": 1,
        "cluster.lost_after_s": 120,
        **_DATA[model],
        "train.steps": 2 * calibration + steps,
        **{f"compression.{key}": value for key, value in table.items()},
    }
    results = run_job(settings, rate, servers=1, workers=_WORKERS)
    first = results[0]
    return {
        "model": model,
        "rate": rate,
        "way": label,
        "chosen": first["chosen_compression"] or None,
        "because": first["chosen_because"],
        "step_seconds": first["seconds_per_step"]["median"],
        "compute_seconds": first["seconds_compute"]["median"],
        "load": os.getloadavg()[0],
    }


def chosen(row: Mapping[str, Any], among: Iterable[Way] | None = None) -> str:
    """The way that a row's run took, `among` those that its job may choose."""
    table = row["chosen"]
    if table is None:
        return str(row["way"])
    given = {key: json.dumps(value) for key, value in table.items()}
    for way in _ways().values() if among is None else among:
        own = way.job.compression.model_dump(mode="json")
        if all(json.dumps(own[key]) == value for key, value in given.items()):
            return way.label
    raise ValueError(f"{table}: none of the ways that a run may choose")


def _prices(model: str, seconds: Mapping[str, float], learnt: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The price of each way whose steps take so long, with the runs to a loss of all models."""
    task = _LIKE[model]
    goal = goal_of(learnt, task)
    reached = {label: steps_to(learnt, task, way, goal) for label, way in [("none", DENSE), *_LEARNT.items()]}
    steps = {label: found[0] for label, found in reached.items() if found is not None}
    return {
        label: each * (steps[label] / steps["none"] if label in _LEARNT else _ways()[label].steps)
        for label, each in seconds.items()
    }


def table(rows: Sequence[dict[str, Any]], learnt: Sequence[dict[str, Any]]) -> str:
    """The cells as Markdown, with the runs to a loss of `learnt`."""
    lines = [
        "| model | links | all, ms | chosen | its step, ms | its price | best | its step, ms | its price | to best |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    near = 0
    for model, rate in dict.fromkeys((row["model"], row["rate"]) for row in rows):
        of_cell = [row for row in rows if (row["model"], row["rate"]) == (model, rate)]
        seconds, choices = _seconds(of_cell), [chosen(row) for row in of_cell if row["way"] == _AUTO]
        if not choices or len(seconds) == 1:
            continue
        prices = _prices(model, seconds, learnt)
        best, choice = min(prices, key=prices.__getitem__), max(choices, key=prices.__getitem__)
        near += prices[choice] <= _NEAR * prices[best]
        dense = f"{1e3 * seconds[_WHOLE]:,.1f}" if _WHOLE in seconds else "not run"
        cells = [
            cell
            for label in (choice, best)
            for cell in (label, f"{1e3 * seconds[label]:,.1f}", f"{1e3 * prices[label]:,.1f}")
        ]
        lines.append(f"| {model} | {rate} | {dense} | {' | '.join(cells)} | {prices[choice] / prices[best]:.2f} |")
    lines += ["", f"In {near} of {len(lines) - 2} cells the choice is the best, or within 10 % of that."]
    return "\n".join(lines)


def _seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The median step of the runs by each way, whether it was named or chosen."""
    labels = [chosen(row) for row in rows]
    return {
        label: median(row["step_seconds"] for row, own in zip(rows, labels, strict=True) if own == label)
        for label in dict.fromkeys(labels)
    }


def _run_missing(rows: list[dict[str, Any]], wanted: tuple[str, str, str], options: argparse.Namespace) -> None:
    """Make one more run of a model, a rate and a way, if there are fewer than there are rounds."""
    model, rate, label = wanted
    known = sum((row["model"], row["rate"], row["way"]) == wanted for row in rows)
    if known >= options.rounds:
        return
    rows.append(measure(model, rate, label, options.steps))
    save_rows(options.json, rows)
    took = f" ({chosen(rows[-1])})" if label == _AUTO else ""
    print(f"{model} {rate} {label}{took}: {1e3 * rows[-1]['step_seconds']:.1f} ms", flush=True)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(_DATA), help="comma-separated")
    parser.add_argument("--rates", default="10gbit,1gbit,100mbit,10mbit", help="from the fastest on")
    parser.add_argument("--steps", type=int, default=12, help="behind those that are calibrated by")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each way, all of them in turns")
    parser.add_argument("--json", type=Path, help="rows that the file holds are not measured again")
    parser.add_argument("--learnt", type=Path, default=_RUNS, metavar="FILE", help="rows of torch_time_to_loss")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows, learnt = load_rows(options.json), learning(load_rows(options.learnt))
    for model in options.models.split(","):
        among = list(_COMPARED)
        for rate in options.rates.split(","):
            for _ in range(options.rounds):
                for label in (_AUTO, *reversed(among)):
                    _run_missing(rows, (model, rate, label), options)
            seconds = _seconds([row for row in rows if (row["model"], row["rate"]) == (model, rate)])
            prices = _prices(model, seconds, learnt)
            among = [label for label in among if prices[label] <= _HOPELESS * min(prices.values())]
    publish(table(rows, learnt), _PAGE, options.docs)


if __name__ == "__main__":
    main()
