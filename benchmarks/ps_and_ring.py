"""Communication of a step through servers and around a ring: `python -m benchmarks.ps_and_ring --help`.

Every process runs on a host of its own, links are shaped (see `benchmarks.network`). Beside the measured ratio stands
that of the paper's machine, by the model of docs/methods.md section 2.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import allreduce, exchange
from taihu.planner.model_shapes import layer_table

__all__ = ["measure", "paper_ratio"]

# Blobs, and bytes; GoogLeNet's with its two auxiliary classifiers, which are not in the table of its layers.
_PAPER_MODELS = {"alexnet": (16, 243.9e6), "googlenet": (128, 53.5e6), "resnet50": (320, 102.2e6)}
_PAPER_BYTES_PER_SECOND = 4.46e9


def paper_ratio(model: str, workers: int) -> float:
    """Time of the paper's parameter server over that of its ring, by the model above."""
    blobs, size_bytes = _PAPER_MODELS[model]
    seconds_each_way = 2 * (workers - 1) / workers * size_bytes / _PAPER_BYTES_PER_SECOND
    servers = 2 * blobs * 0.36e-3 * (workers - 1) ** 0.84 + 2 * seconds_each_way
    return float(servers / (2 * (workers - 1) * 50e-6 + seconds_each_way))


def measure(model: str, workers: int, rate: str, rounds: int) -> dict[str, Any]:
    """Seconds of one server, as many servers as workers, and a ring."""
    row: dict[str, Any] = {"model": model, "workers": workers, "rate": rate}
    for name, servers in (("one_server", 1), ("sharded", workers)):
        measured = exchange.measure(model, (servers, workers), rate, rounds, ["--warmup=1"])
        row[name] = measured["seconds_per_round"]
    megabytes = layer_table(model).elements * 4 / 1e6
    row["ring"] = allreduce.measure(rate, workers, f"{megabytes}", rounds, [])[0]["seconds"]
    return row


def _line(row: dict[str, Any]) -> str:
    one, sharded, ring = (row[name]["median"] for name in ("one_server", "sharded", "ring"))
    return (
        f"| {row['model']} | {row['workers']} | {row['rate']} | {one:.3f} | {sharded:.3f} | {ring:.3f} "
        f"| {one / ring:.2f} | {sharded / ring:.2f} | {paper_ratio(row['model'], row['workers']):.1f} |"
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="alexnet,googlenet,resnet50", help="comma-separated")
    parser.add_argument("--workers", default="2,4,8", help="comma-separated")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows")
    options = parser.parse_args()
    rows = []
    print(
        "| model | workers | links | 1 server s | P servers s | ring s | 1 server / ring | P servers / ring | paper |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for model in options.models.split(","):
        for workers in map(int, options.workers.split(",")):
            rows.append(measure(model, workers, options.rate, options.rounds))
            print(_line(rows[-1]), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
