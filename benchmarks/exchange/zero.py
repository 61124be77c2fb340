"""Step times by stage of ZeRO over shaped links: `python -m benchmarks zero --help`.

Every process of the job is on a host of its own (see `base.network`), or with `colocated` in the place of
`server` one server and one worker share each host; the times are those of the real training loop on synthetic images.
Stages take turns, `--rounds` times over; `3:30000000` is stage 3 with that many `exchange.live_bytes`. The column
*over stage 2* compares.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.base.roles import run_job
from benchmarks.base.rows import load_rows, save_rows

__all__ = ["measure"]

_KEYS = ("seconds_per_step", "seconds_compute", "seconds_wait", "parameters_sha256")


def measure(exchange: str, stage: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row; times are worker 0's, bytes those of all workers together."""
    zero, live_bytes = (int(number or 0) for number in stage.partition(":")[::2])
    colocated = exchange == "colocated"
    servers = 0 if exchange == "ring" else options.workers if colocated else options.servers
    settings = {
        "model.name": options.model,
        "data.name": options.data,
        "train.batch": options.batch,
        "train.steps": options.steps,
        "train.evaluate": "false",
        "optimizer.name": "adam",
        "optimizer.learning_rate": 0.0001,
        "exchange.kind": exchange if exchange == "ring" else "server",
        "exchange.zero": zero,
        "exchange.transport": "tcp",
        "exchange.plan": options.plan,
        "exchange.bucket_bytes": options.bucket_bytes,
        "exchange.live_bytes": live_bytes,
        "cluster.servers": max(1, servers),
        "cluster.workers": options.workers,
        "cluster.threads": 1,
    }
    results = run_job(
        settings, options.rate, servers=servers, workers=options.workers, extra=options.set, colocated=colocated
    )
    moved = sum(result[f"bytes_{way}_per_step"] for result in results for way in ("sent", "received"))
    row = {key: results[0][key] for key in _KEYS}
    of = {"exchange": exchange, "zero": zero, "live_bytes": live_bytes, "rate": options.rate}
    return {**of, "bytes_per_step": moved, **row}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, medians over the runs of a stage."""
    lines = [
        "| exchange | stage | live MB | step s | of runs | compute | wait | GB moved | over stage 2 | hash |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    runs: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["exchange"], row["zero"], row["live_bytes"]), []).append(row)
    medians = {key: statistics.median(row["seconds_per_step"]["median"] for row in own) for key, own in runs.items()}
    for key, own in sorted(runs.items(), key=lambda item: (item[0][0] == "ring", item[0])):
        exchange, zero, live_bytes = key
        steps = [row["seconds_per_step"]["median"] for row in own]
        parts = (statistics.median(row[f"seconds_{part}"]["median"] for row in own) for part in ("compute", "wait"))
        second = medians.get((exchange, 2, 0))
        ratio = f"{medians[key] / second:.2f}" if second else "-"
        lines.append(
            f"| {exchange} | {zero} | {live_bytes / 1e6:.0f} "
            f"| {medians[key]:.3f} | {min(steps):.3f} - {max(steps):.3f} "
            f"| {' | '.join(f'{part:.3f}' for part in parts)} | {own[0]['bytes_per_step'] / 1e9:.3f} "
            f"| {ratio} | {own[0]['parameters_sha256'][:8]} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--exchanges", default="server,colocated,ring", help="comma-separated: server, colocated, ring"
    )
    parser.add_argument("--stages", default="0,1,2,3", help="comma-separated stages of ZeRO, or stage:live bytes")
    parser.add_argument("--model", default="vgg16_cifar")
    parser.add_argument("--data", default="synthetic:3x32x32")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="samples per worker and step")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--plan", default="auto", help="merging of layers")
    parser.add_argument("--bucket-bytes", type=int, default=16 << 20, help="largest merged group from stage 2 on")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to every process")
    parser.add_argument("--json", type=Path, help="write the rows, after those that the file holds already")
    options = parser.parse_args()
    rows = load_rows(options.json)
    for exchange in options.exchanges.split(","):
        for _ in range(options.rounds):
            for stage in options.stages.split(","):
                rows.append(measure(exchange, stage, options))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
                save_rows(options.json, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
