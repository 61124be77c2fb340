"""The choices of `compression.method = auto` beside named ways, over shaped links: `python -m benchmarks chosen`.

One server and three workers on hosts of their own (see `base.network`) train a model on computed data. Each way has a
run; its price is the median of its steps, times the steps that it takes to a loss (`LEARNS`, see `loss_per_byte`). A
row is a cell: the price of what `auto` has chosen, as that run measured it, beside the best of the others. Rates come
from the fastest on; a way that costs three times the best one is not run at slower rates, where it only costs more.
Runs that the file of --json holds are not measured again.

Examples:
  python -m benchmarks chosen --json benchmarks/results/chosen.json --docs docs/compression.md
  python -m benchmarks chosen --models resnet20 --rates 100mbit
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.roles import run_job
from benchmarks.base.rows import load_rows, publish, save_rows
from taihu.core.coordination.choosing import Way, ways
from taihu.core.job.reading import load_job

__all__ = ["measure", "price", "table"]

_PAGE: Final = "measured by benchmarks.compression.chosen"
_WORKERS: Final = 3
_CALIBRATION: Final = 6
_AUTO: Final = "auto"
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


def _ways() -> dict[str, Way]:
    """The ways that a run may choose, by their labels."""
    return {way.label: way for way in ways(load_job(None, {"compression": {"method": _AUTO}}))}


def measure(model: str, rate: str, label: str, steps: int) -> dict[str, Any]:
    """A row; times are worker 0's."""
    table = {"method": _AUTO} if label == _AUTO else _ways()[label].table
    settings = {
        "train.evaluate": "false",
        "optimizer.learning_rate": 0.001,
        "exchange.transport": "tcp",
        "exchange.calibration_steps": _CALIBRATION,
        "cluster.servers": 1,
        "cluster.workers": _WORKERS,
        "cluster.threads": 1,
        "cluster.lost_after_s": 120,
        **_DATA[model],
        "train.steps": 2 * _CALIBRATION + steps,
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


def price(row: Mapping[str, Any]) -> float:
    """Seconds of a row's way for what one step of the whole gradient learns."""
    return float(row["step_seconds"]) * _ways()[chosen(row)].steps


def chosen(row: Mapping[str, Any]) -> str:
    """The way that a row's run took."""
    table = row["chosen"]
    if table is None:
        return str(row["way"])
    given = {key: json.dumps(value) for key, value in table.items()}
    for label, way in _ways().items():
        own = way.job.compression.model_dump(mode="json")
        if all(json.dumps(own[key]) == value for key, value in given.items()):
            return label
    raise ValueError(f"{table}: none of the ways that a run may choose")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The cells as Markdown."""
    lines = [
        "| model | links | dense, ms | chosen | its step, ms | its price | best named | its price | to best |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    cells = dict.fromkeys((row["model"], row["rate"]) for row in rows)
    near = 0
    for model, rate in cells:
        of_cell = [row for row in rows if (row["model"], row["rate"]) == (model, rate)]
        auto = next((row for row in of_cell if row["way"] == _AUTO), None)
        named = [row for row in of_cell if row["way"] != _AUTO]
        if auto is None or not named:
            continue
        best = min(named, key=price)
        dense = next((f"{1e3 * row['step_seconds']:,.0f}" for row in named if row["way"] == "none"), "not run")
        ratio = price(auto) / price(best)
        near += ratio <= _NEAR
        lines.append(
            f"| {model} | {rate} | {dense} | {chosen(auto)} | {1e3 * auto['step_seconds']:,.1f} | "
            f"{1e3 * price(auto):,.1f} | {best['way']} | {1e3 * price(best):,.1f} | {ratio:.2f} |"
        )
    lines += ["", f"In {near} of {len(lines) - 2} cells the choice is the best, or within 10 % of that."]
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(_DATA), help="comma-separated")
    parser.add_argument("--rates", default="10gbit,1gbit,100mbit,10mbit", help="from the fastest on")
    parser.add_argument("--steps", type=int, default=12, help="behind those that are calibrated by")
    parser.add_argument("--json", type=Path, help="rows that the file holds are not measured again")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    for model in options.models.split(","):
        among = list(_COMPARED)
        for rate in options.rates.split(","):
            for label in (_AUTO, *reversed(among)):
                if not any((row["model"], row["rate"], row["way"]) == (model, rate, label) for row in rows):
                    rows.append(measure(model, rate, label, options.steps))
                    save_rows(options.json, rows)
                    last = rows[-1]
                    took = f" ({chosen(last)})" if label == _AUTO else ""
                    print(f"{model} {rate} {label}{took}: {1e3 * last['step_seconds']:.1f} ms", flush=True)
            of_cell = {row["way"]: price(row) for row in rows if (row["model"], row["rate"]) == (model, rate)}
            among = [label for label in among if of_cell[label] <= _HOPELESS * min(of_cell.values())]
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
