"""Many light workers of one server: `python -m benchmarks light`.

A server's process serves so many workers. Each exchanges the gradients of a small model by a stream of its own, and
computes nothing. Workers are threads of some processes, each with the client of any worker: joining, signs of life,
frames, answers. Prints for each number of workers the time of a round, the longest wait of a worker for a round in
medians of all waits, the processor time of the server and of the workers in a round, and the server's memory and
threads. Exits with 1 where the server's processor time grows faster than the number of workers.

Example:
  python -m benchmarks light --workers 8 16 32 64 256 --json benchmarks/results/light.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any, Final

from benchmarks.base.rows import save_rows
from taihu.cli.bench.exchange import bench_job
from taihu.core.job import Job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.process.programs.preparation import allow_open_files
from taihu.worker.bench.exchange import Rounds, exchange_rounds

__all__ = ["main", "measure", "table"]

_PER_PROCESS: Final = 64
_WARM_UP: Final = 5
_ROUNDS, _FEWEST = 16_000, 50
_LOOK_S: Final = 0.05
_LONGEST_S: Final = 900.0
# What the server does once in a round is a share of its time, and less so with more workers.
_MORE: Final = 1.1
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_HERE: Final = Path(__file__).parents[2]


def light_layout() -> Layout:
    """A model of two layers for pictures of 8 x 8 dots: 2,410 values."""
    return Layout(
        (
            LayerSpec("out", (TensorSpec("weight", (32, 10)), TensorSpec("bias", (10,)))),
            LayerSpec("hidden", (TensorSpec("weight", (64, 32)), TensorSpec("bias", (32,)))),
        )
    )


class Watched:
    """The processor time, memory and threads of a process over time; a context manager, from `/proc`.

    Attributes:
        looks: seconds of the monotonic clock, and of the processor, at each look.
        most_bytes: resident memory, at most.
        most_threads: at most.
    """

    def __init__(self, pid: int) -> None:
        self.looks: list[tuple[float, float]] = []
        self.most_bytes = self.most_threads = 0
        self._folder = Path(f"/proc/{pid}")
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seconds_between(self, begin_s: float, end_s: float) -> float:
        """Processor time between two moments, as nearly as it was looked at."""
        inside = [(at, used) for at, used in self.looks if begin_s <= at <= end_s]
        (first_s, before), (last_s, after) = inside[0], inside[-1]
        return (after - before) * (end_s - begin_s) / (last_s - first_s)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                return
            used = (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
            self.looks.append((time.monotonic(), used))
            self.most_threads = max(self.most_threads, int(fields[17]))
            self.most_bytes = max(self.most_bytes, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def measure(workers: int, rounds: int, carrier: str, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Rounds of so many workers: times in milliseconds, memory in MB."""
    given = ["--workers", str(workers), "--rounds", str(rounds), "--carrier", carrier]
    given += [part for each in settings for part in ("--set", each)]
    with tempfile.TemporaryDirectory() as name, _server(workers, _settings(carrier, settings)) as (server, address):
        with Watched(server.pid) as watched:
            parts = [
                _part(
                    range(first, min(first + _PER_PROCESS, workers)), [*given, "--coordinator", address], Path(name)
                )
                for first in range(0, workers, _PER_PROCESS)
            ]
            codes = [part.wait(timeout=_LONGEST_S) for part in parts]
        server.wait(timeout=_LONGEST_S)
        if any(codes):
            raise RuntimeError(f"processes of workers ended with {codes}; see above")
        told = [json.loads(path.read_text()) for path in sorted(Path(name).glob("*.json"))]
    begin_s, end_s = max(each["begin_s"] for each in told), min(each["end_s"] for each in told)
    waits = [seconds for each in told for worker in each["waits"] for seconds in worker]
    of_workers = sum(each["cpu_s"] / (each["end_s"] - each["begin_s"]) for each in told) * (end_s - begin_s)
    in_window = (end_s - begin_s) / rounds
    return {
        "workers": workers,
        "carrier": carrier,
        "rounds": rounds,
        "round_ms": 1e3 * in_window,
        "wait_ms": 1e3 * median(waits),
        "longest_over_median": max(waits) / median(waits),
        "late_over_median": quantiles(waits, n=100)[-1] / median(waits),
        "server_cpu_ms": 1e3 * watched.seconds_between(begin_s, end_s) / rounds,
        "workers_cpu_ms": 1e3 * of_workers / rounds,
        "server_mb": watched.most_bytes / 1e6,
        "server_threads": watched.most_threads,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [
        "| workers | by | round, ms | for each worker | longest wait, in medians | 99 % | server's processor, ms "
        "| for each worker | workers' processor, ms | server's memory, MB | threads |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        count = row["workers"]
        told = [
            f"{count} | {row['carrier']} | {row['round_ms']:.1f} | {row['round_ms'] / count:.2f}",
            f"{row['longest_over_median']:.1f} | {row['late_over_median']:.1f} | {row['server_cpu_ms']:.1f}",
            f"{row['server_cpu_ms'] / count:.2f} | {row['workers_cpu_ms']:.1f} | {row['server_mb']:.0f}",
            str(row["server_threads"]),
        ]
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0 where the server's work grows no faster than the number of workers."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16, 32, 64, 256])
    parser.add_argument("--rounds", type=int, default=0, help="by default 16,000 of single workers together")
    parser.add_argument("--carrier", choices=("tcp", "grpc"), default="tcp")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the job")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", nargs=2, type=int, metavar=("FIRST", "END"), help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    allow_open_files()
    if options.part is not None:
        job = _job(options.workers[0], _settings(options.carrier, options.set), options.coordinator)
        options.json.write_text(json.dumps(_be_workers(job, range(*options.part), options.rounds)))
        return 0
    rows = []
    for workers in options.workers:
        rounds = options.rounds or max(_FEWEST, _ROUNDS // workers)
        rows.append(measure(workers, rounds, options.carrier, options.set))
        print(json.dumps(rows[-1]), flush=True)
    save_rows(options.json, rows)
    print(table(rows))
    by_worker = [row["server_cpu_ms"] / row["workers"] for row in rows]
    return 0 if by_worker[-1] <= _MORE * by_worker[0] else 1


def _settings(carrier: str, others: Sequence[str]) -> list[str]:
    return [f"exchange.transport={carrier}", "cluster.connect_timeout_s=300", "cluster.lost_after_s=60", *others]


def _job(workers: int, settings: Sequence[str], coordinator: str) -> Job:
    cluster: dict[str, object] = {"servers": 1, "workers": workers, "coordinator": coordinator}
    return bench_job(settings, cluster, launched=True)


@contextmanager
def _server(workers: int, settings: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server's process, and the address that it tells."""
    given = [part for each in settings for part in ("--set", each)]
    command = [sys.executable, "-m", "taihu", "dev", "bench", "exchange", "--role", "server", "--rank", "0"]
    command += ["--servers", "1", "--workers", str(workers), "--bind", "127.0.0.1:0", *given]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None  # noqa: S101
        yield process, process.stdout.readline().removeprefix("listening on ").split(",")[0].strip()
    finally:
        process.kill()
        process.communicate()


def _part(ranks: range, given: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """A process of workers, which leaves its results in a folder."""
    command = [sys.executable, "-m", "benchmarks", "light", "--part", str(ranks.start), str(ranks.stop), *given]
    command += ["--json", str(folder / f"{ranks.start:04}.json")]
    return subprocess.Popen(command, cwd=_HERE, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _be_workers(job: Job, ranks: range, rounds: int) -> dict[str, Any]:
    """Be these workers: their waits in seconds, when all of them were counted, and the processor time of that."""
    waits: list[list[float]] = []
    spans: list[tuple[float, float]] = []

    def work(rank: int) -> None:
        told = exchange_rounds(job, rank, light_layout(), Rounds(rounds, _WARM_UP))
        own, end_s = told["all_seconds"]["own"], time.monotonic()
        waits.append(own)
        spans.append((end_s - sum(own), end_s))

    with Watched(os.getpid()) as watched:
        threads = [Thread(target=work, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if len(waits) < len(threads):
        raise RuntimeError(f"{len(threads) - len(waits)} workers failed")
    begin_s, end_s = max(span[0] for span in spans), min(span[1] for span in spans)
    used_s = watched.seconds_between(begin_s, end_s)
    return {"waits": waits, "begin_s": begin_s, "end_s": end_s, "cpu_s": used_s}


if __name__ == "__main__":
    sys.exit(main())
