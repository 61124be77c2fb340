"""Throughput where more workers have room for larger batches: `python -m benchmarks larger_batches --help`.

From stage 1 of ZeRO on states are divided among the workers of a ring: the more there are, the less each holds, and
the more samples have room beside that under a limit. A step then sends as much as before and computes for more
samples, so that throughput grows faster than the number of workers (Rajbhandari et al. 2020, section 10.3). Each row
is the largest batch that the plan of memory allows under --limit, and a run of real processes with it, each on a host
of its own behind a link of --rate (see `base.network`; needs root). --keep-batch measures the same with the
batch of the fewest workers.

The model's computing is modelled (`benchmarks/models/paced.py`): many workers share few cores here, and their time
must not depend on that.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.base.roles import run_job
from benchmarks.base.rows import in_page, load_rows, save_rows
from taihu.cli.planning.job_memory import JobMemory
from taihu.core.base.errors import ConfigError
from taihu.core.base.words import parse_bytes
from taihu.core.job import Job, load_job, parse_assignments
from taihu.core.planner.largest_batch import largest_batch
from taihu.core.planner.memory import MemoryJob, worker_memory
from taihu.worker.data.load import load_dataset

__all__ = ["SOURCE", "planned", "planned_bytes", "settings_of", "table"]

SOURCE: Final = "measured by benchmarks.exchange.larger_batches"

_MODEL: Final = f"{Path(__file__).parents[1] / 'models' / 'paced.py'}:build"
_HEAD: Final = """\
| stage | workers | batch of each | step s | samples/s | over linear |
|---|---|---|---|---|---|"""


def settings_of(zero: int, workers: int, batch: int, steps: int) -> dict[str, object]:
    """The job's settings, by key."""
    return {
        "model.name": _MODEL,
        "data.name": "synthetic:1x16x16:classes=10:samples=4096",
        "train.batch": batch,
        "train.steps": steps,
        "train.evaluate": "false",
        "optimizer.name": "adam",
        "optimizer.learning_rate": 0.0001,
        "exchange.kind": "ring",
        "exchange.zero": zero,
        "exchange.transport": "tcp",
        "exchange.plan": "per-layer",
        "exchange.bucket_bytes": 1 << 18,
        "cluster.workers": workers,
        "cluster.threads": 1,
    }


def planned(zero: int, workers: int, limit_bytes: float) -> tuple[int, MemoryJob]:
    """The largest batch of each worker under a limit, and what the memory of the job with one sample depends on.

    Raises:
        ConfigError: not even one sample fits.
    """
    job = _job(settings_of(zero, workers, 1, 1))
    data = load_dataset(job.data)
    memory = JobMemory(job, data)
    of_job = memory.of_job(job)
    most = len(data.train) // workers
    batch = largest_batch(of_job, partial(memory.of_batch, job), most, int(limit_bytes), 0)
    if not batch:
        raise ConfigError(
            f"--limit: a worker of {workers} takes {worker_memory(of_job).total} bytes for one sample in stage "
            f"{zero}, seen {limit_bytes:.0f}; give more"
        )
    return batch, of_job


def planned_bytes(zero: int, workers: int, batch: int) -> int:
    """Bytes of a worker by the plan."""
    job = _job(settings_of(zero, workers, batch, 1))
    return worker_memory(JobMemory(job, load_dataset(job.data)).of_job(job)).total


def _job(settings: dict[str, object]) -> Job:
    return load_job(None, parse_assignments([f"{key}={value}" for key, value in settings.items()]))


def measure(zero: int, workers: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row; times are the slowest worker's."""
    results = run_job(settings_of(zero, workers, batch, options.steps), options.rate, servers=0, workers=workers)
    step, wait = (max(result[f"seconds_{name}"]["median"] for result in results) for name in ("per_step", "wait"))
    return {
        "zero": zero,
        "workers": workers,
        "batch": batch,
        "limit_bytes": int(options.limit),
        "rate": options.rate,
        "planned_bytes": planned_bytes(zero, workers, batch),
        "seconds_per_step": step,
        "seconds_wait": wait,
        "samples_per_second": workers * batch / step,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown; over linear is throughput by that of the first row of the stage, for as many workers."""
    return "\n".join([_HEAD, *(_line(row, _first(rows, row)) for row in rows)])


def _first(rows: Sequence[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    return next(first for first in rows if first["zero"] == row["zero"])


def _line(row: dict[str, Any], first: dict[str, Any]) -> str:
    linear = first["samples_per_second"] * row["workers"] / first["workers"]
    return (
        f"| {row['zero']} | {row['workers']} | {row['batch']} | {row['seconds_per_step']:.3f} "
        f"| {row['samples_per_second']:.1f} "
        f"| {row['samples_per_second'] / linear:.2f} |"
    )


def _size(text: str) -> float:
    size = parse_bytes(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text}: expected a number with B, kB, MB or GB, for example 15MB")
    return size


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,4,8", help="comma-separated, ascending")
    parser.add_argument("--stages", default="2,3", help="comma-separated stages of ZeRO")
    parser.add_argument("--limit", type=_size, default=15e6, metavar="SIZE", help="of a worker, by the plan")
    parser.add_argument("--rate", default="25mbit")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--keep-batch", action="store_true", help="of the fewest workers, for all")
    parser.add_argument("--json", type=Path, help="write the rows, after those that the file holds already")
    parser.add_argument("--docs", type=Path, help="a page, whose table becomes that of all rows")
    options = parser.parse_args()
    rows = load_rows(options.json)
    print(_HEAD, flush=True)
    counts = list(map(int, options.workers.split(",")))
    for zero in map(int, options.stages.split(",")):
        for workers in counts:
            batch, _ = planned(zero, counts[0] if options.keep_batch else workers, options.limit)
            rows.append(measure(zero, workers, batch, options))
            print(_line(rows[-1], _first(rows, rows[-1])), flush=True)
            save_rows(options.json, rows)
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), SOURCE, table(rows)))


if __name__ == "__main__":
    main()
