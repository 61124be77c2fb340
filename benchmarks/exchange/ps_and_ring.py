"""Communication of a step through servers and around a ring: `python -m benchmarks ps_and_ring --help`.

Every process runs on a host of its own, links are shaped (see `base.network`). Through one server layers go
merged into groups of 4 MB, as a message for each blob, or as one that waits until the one before has come back; and
merged through as many servers as workers. Around the ring goes one allreduce of the whole arena. Beside the measured
ratios stands that of the paper's machine, by the model of docs/methods.md section 2, and what it would be without the
start-ups of its messages. Rows that the file of --json holds are not measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.exchange import allreduce, exchange
from taihu.core.planner.model_shapes import layer_table
from taihu.simulation.figures.papers_machine import BYTES_PER_SECOND, start_up_seconds

__all__ = ["allreduce_ratio", "columns_ratio", "measure", "paper_ratio", "table"]

# Caffe's blobs, and bytes: a norm has five blobs in Caffe, running moments among them, and two tensors here.
_PAPER_MODELS = MappingProxyType({"alexnet": (16, 243.9e6), "googlenet": (128, 53.5e6), "resnet50": (320, 102.2e6)})
_BLOBS = ("--blobs",)
_WAITING = (*_BLOBS, "--set=exchange.window_frames=1", f"--set=exchange.frame_bytes={4 << 20}")
_THROUGH_ONE = MappingProxyType({"one_server": (), "blobs": _BLOBS, "waiting": _WAITING})
_WAYS = (*_THROUGH_ONE, "sharded")
_PAGE = "measured by benchmarks.exchange.ps_and_ring"


def paper_ratio(model: str, workers: int, *, start_ups: bool = True) -> float:
    """Time of the paper's parameter server over that of its ring, by the model above.

    Without `start_ups` neither has any: what is left is the ratio of the bytes.
    """
    blobs, size_bytes = _PAPER_MODELS[model]
    ring = 2 * (workers - 1) / workers * size_bytes / BYTES_PER_SECOND
    servers = 2 * ring
    if start_ups:
        servers += 2 * blobs * start_up_seconds(workers)
        ring += start_up_seconds(workers)
    return servers / ring


def allreduce_ratio(additions_bytes_per_second: float | None) -> float:
    """Time of MPI_Allreduce over that of the ring on 512 nodes of two supernodes, by that model.

    Where additions take time, only MPI_Allreduce waits for them.
    """
    nodes, supernode, size_bytes, slower = 512, 256, 243.9e6, 4
    volume = size_bytes / nodes / BYTES_PER_SECOND
    naive = 2 * volume * ((supernode - 1) + (nodes - supernode) * slower)
    if additions_bytes_per_second is not None:
        naive += size_bytes * (nodes - 1) / nodes / additions_bytes_per_second
    return naive / (2 * volume * (nodes - 1))


def columns_ratio(inputs: int, outputs: int, workers: int, batch: int) -> float:
    """Time of a layer's gradient around the ring over that of the layer by columns, by the model of section 3."""
    start_up, per_value = start_up_seconds(workers), 4 / BYTES_PER_SECOND
    data = start_up + 2 * (workers - 1) / workers * (inputs + 1) * outputs * per_value
    return data / (7 * start_up + (workers - 1) * batch * (4 * inputs + 2 * outputs) * per_value)


def measure(model: str, workers: int, rate: str, rounds: int) -> dict[str, Any]:
    """Seconds of one server in three ways, of as many servers as workers, and of a ring."""
    megabytes = layer_table(model).elements * 4 / 1e6
    row: dict[str, Any] = {"model": model, "workers": workers, "rate": rate}
    for name, flags in _THROUGH_ONE.items():
        measured = exchange.measure(model, (1, workers), rate, rounds, ["--warmup=1", *flags])
        row[name] = measured["seconds_per_round"]
    measured = exchange.measure(model, (workers, workers), rate, rounds, ["--warmup=1"])
    row["sharded"] = measured["seconds_per_round"]
    row["ring"] = allreduce.measure(rate, workers, f"{megabytes}", rounds, [])[0]["seconds"]
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown: the ring's median, and how many times as long others take; `-` was not measured."""
    lines = [
        "| model | workers | ring s | merged | a message a blob | one at a time | P servers | paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, sorted(rows, key=lambda row: (row["model"], row["workers"], row["rate"])))])


def _line(row: dict[str, Any]) -> str:
    ring = row["ring"]["median"]
    seconds = [row[way]["median"] if way in row else None for way in _WAYS]
    ways = " | ".join("-" if each is None else f"{each / ring:.2f}" for each in seconds)
    model, workers = row["model"], row["workers"]
    return f"| {model} | {workers} | {ring:.3f} | {ways} | {paper_ratio(model, workers):.1f} |"


def _with(rows: Sequence[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows and one more, without those of the same setting."""
    return [each for each in rows if any(each[key] != row[key] for key in ("model", "workers", "rate"))] + [row]


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="alexnet,googlenet,resnet50", help="comma-separated")
    parser.add_argument("--workers", default="2,4,8", help="comma-separated")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    done = {(row["model"], row["workers"], row["rate"]) for row in rows if all(way in row for way in _WAYS)}
    for model in options.models.split(","):
        for workers in map(int, options.workers.split(",")):
            if (model, workers, options.rate) not in done:
                rows = _with(rows, measure(model, workers, options.rate, options.rounds))
                save_rows(options.json, rows)
                print(_line(rows[-1]), flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
