"""Resident memory of workers and servers by stage of ZeRO: `python -m benchmarks memory --help`.

Each run is a job of real processes on this machine, over TCP, whose resident memory is sampled from outside. What a
process holds without parameters is measured by the same run of a narrow model; what the stage adds for the whole one
is computed by `taihu.core.planner.memory`. A row compares the sum of both with what was measured in the second half
of the steps; `peak` is the most that a process ever held, with its start and its end. `--limit-mb` puts every
process into a memory cgroup (version 1) of its own with this limit; needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.base.network import last_line
from benchmarks.base.rows import load_rows, save_rows
from taihu.cli.planning.job_memory import JobMemory
from taihu.core.job import load_job, parse_assignments
from taihu.core.planner.memory import MemoryJob, server_memory, worker_memory
from taihu.core.wire.base.address import free_port
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import build_model
from taihu.worker.fc.connected import spreadable
from taihu.worker.training.planned_memory import memory_job

__all__ = ["measure", "options_of", "planned"]

_MODELS = Path(__file__).parents[1] / "models"
_CLASSES = 10
_SAMPLE_S = 0.02
_KIB = 1024
_BEGUN = b'"event": "training"'
_SAID_BYTES = 1 << 16
_MB = 1e6


def measure(
    zero: int, servers: int, options: argparse.Namespace, bases: dict[int, tuple[float, float]]
) -> dict[str, Any]:
    """One row; `bases` keeps what processes hold beside what is planned, by number of servers."""
    if servers not in bases:
        # The first run of a checkout compiles kernels, and the compiler stays in memory.
        for _ in range(2):
            narrow = _run(_settings(zero, servers, "build_narrow", options), options, limited=False)
        few = _with_steps(zero, servers, "build_narrow", options)
        bases[servers] = (narrow["worker"] - worker_memory(few).total, narrow["server"] - server_memory(few).total)
    whole = _with_steps(zero, servers, "build", options)
    of_role = {"worker": worker_memory(whole).total, "server": server_memory(whole).total}
    steps = {"worker": whole.activation_bytes + whole.data_bytes, "server": 0}
    measured = _run(_settings(zero, servers, "build", options), options, limited=True)
    row: dict[str, Any] = {
        "model": options.model.stem,
        "batch": options.batch,
        "settings": options.set,
        "zero": zero,
        "servers": servers,
        "workers": options.workers,
        "parameters": whole.elements + sum(whole.spread_elements),
    }
    for role, base in zip(("worker", "server"), bases[servers], strict=True):
        if not measured[role]:
            continue
        expected = base + of_role[role]
        row[role] = {
            "base": base,
            "planned": of_role[role] - steps[role],
            "activations_and_data": steps[role],
            "predicted": expected,
            "measured": measured[role],
            "error": expected / measured[role] - 1,
            "peak": measured[f"{role}_peak"],
            "growth": measured[f"{role}_growth"],
        }
    return {**row, **{key: measured[key] for key in ("seconds_per_step", "final_loss", "parameters_sha256")}}


def planned(
    zero: int, servers: int, builder: str, options: argparse.Namespace, image: tuple[int, ...] | None = None
) -> MemoryJob:
    """The facts that the planner counts states by, of the model that `builder` builds for images of this size."""
    job = load_job(None, parse_assignments(_settings(zero, servers, builder, options)))
    model = build_model(job.model.name, image or options.image, _CLASSES)
    return memory_job(job, model.layout, spreadable(model))


def _with_steps(zero: int, servers: int, builder: str, options: argparse.Namespace) -> MemoryJob:
    """The facts that the planner counts by, with activations and data."""
    job = load_job(None, parse_assignments(_settings(zero, servers, builder, options)))
    return JobMemory(job, load_dataset(job.data, job.model.name)).of_job(job)


def _settings(zero: int, servers: int, builder: str, options: argparse.Namespace) -> list[str]:
    settings = {
        "model.name": f"{options.model}:{builder}",
        "data.name": options.data or "synthetic:{2}x{0}x{1}".format(*options.image),
        "train.batch": options.batch,
        "train.steps": options.steps,
        "train.evaluate": "false",
        "optimizer.name": "adam",
        "optimizer.learning_rate": 0.0001,
        "exchange.kind": options.exchange,
        "exchange.zero": zero,
        "exchange.transport": "tcp",
        "exchange.plan": options.plan,
        "cluster.servers": servers,
        "cluster.workers": options.workers,
        "cluster.threads": 1,
        # On a busy machine some processes start a minute after others.
        "cluster.connect_timeout_s": 600,
    }
    if options.bucket_bytes is not None:
        settings["exchange.bucket_bytes"] = options.bucket_bytes
    return [*(f"{key}={value}" for key, value in settings.items()), *options.set]


def _run(assignments: Sequence[str], options: argparse.Namespace, *, limited: bool) -> dict[str, Any]:
    """Resident bytes of the largest worker and server, steady and ever, and what worker 0 says of the run."""
    job = load_job(None, parse_assignments(assignments))
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    common = [*(f"--set={item}" for item in assignments), "--coordinator", address, "--log-format", "json"]
    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "worker-0.json"
        commands = [
            [sys.executable, "-P", "-m", "taihu.ps_server", *common, "--index", str(index)]
            for index in range(job.servers)
        ]
        for rank in range(job.cluster.workers):
            extra = ["--json", str(result)] if rank == 0 else []
            commands.append([sys.executable, "-P", "-m", "taihu.worker", *common, "--rank", str(rank), *extra])
        watched = _run_all(commands, options.limit_mb if limited else None)
        results = json.loads(result.read_text())
    figures: dict[str, Any] = {key: results[key] for key in ("final_loss", "parameters_sha256")}
    for role, own in (("server", watched[: job.servers]), ("worker", watched[job.servers :])):
        figures[role] = max((each.steady for each in own), default=0.0)
        figures[f"{role}_growth"] = max((each.growth for each in own), default=0.0)
        figures[f"{role}_peak"] = max((each.peak for each in own), default=0.0)
    return {**figures, "seconds_per_step": results["seconds_per_step"]["median"]}


@dataclass
class Watched:
    """Resident bytes of a process: while steps are made, time after time, and the most ever."""

    samples: list[float] = field(default_factory=list)
    peak: float = 0.0

    @property
    def steady(self) -> float:
        """The most in the second half of the steps, without the end, where memory is given back."""
        half = len(self.samples) // 2
        return max(self.samples[half : max(half + 1, len(self.samples) - 5)], default=self.peak)

    @property
    def growth(self) -> float:
        """The maximum of the last quarter less that of the second one."""
        quarter = len(self.samples) // 4
        last, second = self.samples[3 * quarter :], self.samples[quarter : 2 * quarter]
        return max(last, default=0.0) - max(second, default=0.0)

    def look(self, pid: int, *, steps: bool) -> None:
        """Read what the system says of process `pid`, if it is there; a sample if it makes `steps`."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        values = dict(line.split(":", 1) for line in status.splitlines())
        if "VmRSS" in values:
            self.peak = max(self.peak, _bytes(values["VmHWM"]))
            if steps:
                self.samples.append(_bytes(values["VmRSS"]))


def _bytes(text: str) -> float:
    """The bytes of a line such as `12 kB`."""
    return float(text.split(maxsplit=1)[0]) * _KIB


def _run_all(commands: Sequence[Sequence[str]], limit_mb: float | None) -> list[Watched]:
    """Run them to their end; exits with their last words if one fails."""
    with ExitStack() as stack:
        prefixes = stack.enter_context(_limits(len(commands), limit_mb))
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        processes = [
            subprocess.Popen([*prefix, *command], stdout=subprocess.DEVNULL, stderr=errors)
            for prefix, command, errors in zip(prefixes, commands, said, strict=True)
        ]
        watched = _watch(processes, said)
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"error: a role failed: exit codes {codes}\n" + "\n".join(map(last_line, said)))
    return watched


def _watch(processes: Sequence[subprocess.Popen[bytes]], said: Sequence[IO[str]]) -> list[Watched]:
    """Look at every process until all have ended; steps are made once a worker has said so."""
    watched = [Watched() for _ in processes]
    steps = False
    while any(process.poll() is None for process in processes):
        steps = steps or any(_BEGUN in os.pread(each.fileno(), _SAID_BYTES, 0) for each in said)
        for process, own in zip(processes, watched, strict=True):
            own.look(process.pid, steps=steps)
        time.sleep(_SAMPLE_S)
    return watched


@contextmanager
def _limits(count: int, limit_mb: float | None) -> Iterator[list[list[str]]]:
    """For each of `count` commands a prefix that runs it in a cgroup of its own, if there is a limit."""
    if limit_mb is None:
        yield [[] for _ in range(count)]
        return
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    root = Path("/sys/fs/cgroup/memory") / own.split(":", 2)[2].lstrip("/")
    groups = [root / f"taihu-{os.getpid()}-{index}" for index in range(count)]
    for group in groups:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(int(limit_mb * _MB)))
    try:
        yield [["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"] for group in groups]
    finally:
        for group in groups:
            group.rmdir()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown; megabytes are 10^6 bytes."""
    lines = [
        "| stage | servers | workers | worker MB: predicted | measured | error "
        "| server MB: predicted | measured | error | step s | hash |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [str(row[key]) for key in ("zero", "servers", "workers")]
        for role in ("worker", "server"):
            of = row.get(role)
            mb = [f"{of[key] / _MB:.0f}" for key in ("predicted", "measured")] if of else ["-", "-"]
            cells += [*mb, f"{of['error']:+.1%}" if of else "-"]
        cells += [f"{row['seconds_per_step']:.3f}", row["parameters_sha256"][:8]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _image(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line, by default of this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="0,1,2,3", help="comma-separated stages of ZeRO")
    parser.add_argument("--servers", default="1,2,4", help="comma-separated numbers of servers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", type=Path, default=_MODELS / "deep_mlp.py", help="has build and build_narrow")
    parser.add_argument("--image", type=_image, default=(8, 8, 1), metavar="HxWxC", help="of the model's inputs")
    parser.add_argument("--data", help="a data set in the place of synthetic images, as `data.name`")
    parser.add_argument("--exchange", choices=("server", "ring"), default="server")
    parser.add_argument("--batch", type=int, default=4, help="samples per worker and step")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--plan", default="per-layer", help="merging of layers")
    parser.add_argument("--bucket-bytes", type=int, help="largest merged group from stage 2 on")
    parser.add_argument("--limit-mb", type=float, help="memory limit of every process")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to every process")
    parser.add_argument("--json", type=Path, help="write the rows, after those that the file holds already")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure what the command line names."""
    options = options_of()
    rows = load_rows(options.json)
    bases: dict[int, tuple[float, float]] = {}
    stages, servers = (list(map(int, text.split(","))) for text in (options.stages, options.servers))
    for count, zero in itertools.product(servers, stages):
        rows.append(measure(zero, count, options, bases))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        save_rows(options.json, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
