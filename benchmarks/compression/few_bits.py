"""Step times with values of few bits over shaped links: `python -m benchmarks few_bits`.

One server and three workers on hosts of their own (see `base.network`) train a model of the zoo on synthetic images,
as in `compression`. The ways of a model and rate run one after another; a row has the median time of a batch, and the
bytes of a worker for it, up and down. With local steps a step has several batches. Rows that the file of --json holds
are not measured again.

Examples:
  python -m benchmarks few_bits --json benchmarks/results/few_bits.json --docs docs/compression.md
  python -m benchmarks few_bits --cells resnet20:10mbit
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.roles import run_job
from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.compression.thresholds import data_and_model

__all__ = ["measure", "table"]

_PAGE: Final = "measured by benchmarks.compression.few_bits"
_CELLS: Final = "resnet20:10mbit,resnet20:100mbit,vgg16_cifar:100mbit"
_WORKERS: Final = 3
_CALIBRATION: Final = 5
_DLGS: Final = {"compression.method": "dlgs", "compression.density": 0.01}
_ALL: Final = {"compression.method": "quantized"}


def _both(value_type: str) -> dict[str, str]:
    return {"compression.value_type": value_type, "compression.downlink_value_type": value_type}


WAYS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "dense": {},
        "quantized, int8 both ways": {**_ALL, **_both("int8")},
        "quantized, int4 both ways": {**_ALL, **_both("int4")},
        "dlgs 0.01": _DLGS,
        "dlgs 0.01, int4 up": {**_DLGS, "compression.value_type": "int4"},
        "dlgs 0.01, int4 both ways": {**_DLGS, **_both("int4")},
        "dlgs 0.01, int4 both ways, 4 local steps": {**_DLGS, **_both("int4"), "exchange.local_steps": 4},
    }
)
"""The settings of each way."""


def measure(model: str, rate: str, way: str, steps: int) -> dict[str, Any]:
    """A row; times are worker 0's, bytes those of one worker in the mean."""
    settings = {
        "train.batch": 8,
        "train.evaluate": "false",
        "optimizer.learning_rate": 0.01,
        "exchange.transport": "tcp",
        "exchange.calibration_steps": _CALIBRATION,
        "cluster.servers": 1,
        "cluster.workers": _WORKERS,
        "cluster.threads": 1,
        **data_and_model(model, "real"),
        "train.steps": 2 * _CALIBRATION + steps,
        **WAYS[way],
    }
    results = run_job(settings, rate, servers=1, workers=_WORKERS)
    batches = int(settings.get("exchange.local_steps", 1))
    sent, received = (
        sum(each[f"bytes_{which}_per_step"] for each in results) / _WORKERS for which in ("sent", "received")
    )
    return {
        "model": model,
        "rate": rate,
        "way": way,
        "batch_seconds": results[0]["seconds_per_step"]["median"] / batches,
        "compute_seconds": results[0]["seconds_compute"]["median"] / batches,
        "sent_bytes": sent / batches,
        "received_bytes": received / batches,
        "load": os.getloadavg()[0],
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, beside the dense one of their cell."""
    lines = [
        "| model | links | way | batch s | compute | times as fast | up kB | down kB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        dense = next(each for each in rows if each["way"] == "dense" and _cell(each) == _cell(row))
        ratio = dense["batch_seconds"] / row["batch_seconds"]
        up, down = row["sent_bytes"] / 1000, row["received_bytes"] / 1000
        lines.append(
            f"| {row['model']} | {row['rate']} | {row['way']} | {row['batch_seconds']:.3f} | "
            f"{row['compute_seconds']:.3f} | {ratio:.1f} | {up:,.1f} | {down:,.1f} |"
        )
    return "\n".join(lines)


def _cell(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["model"], row["rate"]


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=_CELLS, help="comma-separated, MODEL:RATE")
    parser.add_argument("--steps", type=int, default=12, help="behind those that are calibrated by")
    parser.add_argument("--json", type=Path, help="rows that the file holds are not measured again")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    known = {(*_cell(row), row["way"]) for row in rows}
    for cell in options.cells.split(","):
        model, rate = cell.split(":")
        for way in WAYS:
            if (model, rate, way) not in known:
                rows.append(measure(model, rate, way, options.steps))
                save_rows(options.json, rows)
                print(f"{cell} {way}: {rows[-1]['batch_seconds']:.3f} s", flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
