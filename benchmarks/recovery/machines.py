"""Machines of other speeds and numbers in one run: `python -m benchmarks machines --help`.

Each agent has a host of its own with a part of a core, and all share the workers of one job:

- `lost`: of three machines that are alike one is lost for good. How much longer do steps take?
- `slow`: of three machines one is three times slower. How long do steps take with as many workers on each, and how
  long as the run shares them out? The shortest is that of the best assignment, by the cores.
- `schedule`: two machines become six and three, some of them killed. A picture shows machines, steps and loss.

All runs are stopped, and compared with `taihu train` of as many steps, without bounds: the parameters, to the bit.
Needs root, iproute2, and control groups that this user may make.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.recovery.agents import Machines
from benchmarks.recovery.hosts import Hosts

__all__ = ["CASES", "table"]

_PAGE: Final = "measured by benchmarks.recovery.machines"
_JOB: Final = (
    *("--servers", "2", "--model", "cifar10_quick", "--data", "synthetic:3x32x32:samples=2048", "--batch", "16"),
    *("--set", "train.evaluate=false", "--set", "cluster.threads=1"),
)
_RATE_BITS: Final = 1e9
_STEPS: Final = 60
_SKIPPED: Final = 15
_LONGEST_S: Final = 300.0
_LOOK_S: Final = 0.25


class Watched:
    """A run on machines, its steps as it tells them, and samples of what was there when."""

    def __init__(self, folder: Path, machines: Machines) -> None:
        self._folder = folder
        self.machines = machines
        self.samples: list[dict[str, float]] = []
        self._start = time.monotonic()

    def steps(self) -> list[dict[str, str]]:
        """The rows of all steps."""
        path = self._folder / "run" / "steps.csv"
        if not path.exists():
            return []
        with path.open() as file:
            return [row for row in csv.DictReader(file) if row["worker_0_loss"] and row["step_seconds"]]

    def await_steps(self, count: int) -> None:
        """Return when so many steps more have been made."""
        until = len(self.steps()) + count
        self.await_(lambda: len(self.steps()) >= until)

    def await_(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds; samples are taken meanwhile."""
        deadline = time.monotonic() + _LONGEST_S
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"error: the run does not go on within {_LONGEST_S:g} s")
            rows = self.steps()
            self.samples.append(
                {
                    "s": round(time.monotonic() - self._start, 2),
                    "agents": len(self.machines.agents),
                    "step": len(rows),
                    "loss": float(rows[-1]["worker_0_loss"]) if rows else float("nan"),
                }
            )
            time.sleep(_LOOK_S)

    def step_s(self) -> float:
        """The median time of the next steps, after the first few."""
        self.await_steps(_SKIPPED)
        first = len(self.steps())
        self.await_steps(_STEPS)
        return float(np.median([float(row["step_seconds"]) for row in self.steps()[first:]]))

    def moved(self, times: int) -> bool:
        """Whether the run has gone on so many times behind a change of its agents."""
        resumed = [each for each in self.machines.events if each["event"] == "resumed"]
        return len(resumed) >= times


def lost(run: Watched) -> dict[str, Any]:
    """A machine is lost for good."""
    _come(run, 3)
    before = run.step_s()
    run.machines.lose("agent killed", max(run.machines.agents))
    run.await_(lambda: run.moved(1))
    after = run.step_s()
    return {"before_s": before, "after_s": after, "ratio": after / before, "ideal": 1.5}


def slow(run: Watched) -> dict[str, Any]:
    """A machine is three times slower than two others."""
    _come(run, 3)
    run.await_steps(5)
    first = len(run.steps())
    run.await_(lambda: run.moved(1))
    (moved, *_) = [each for each in run.machines.events if each["event"] == "resumed"]
    rows = run.steps()[first : int(moved["after_step"])]
    before = float(np.median([float(row["step_seconds"]) for row in rows]))
    after = run.step_s()
    # Four each: 4 / 0.2. The best: 5, 5 and 2: 2 / 0.2.
    return {"before_s": before, "after_s": after, "ratio": after / before, "ideal": 0.5}


def schedule(run: Watched) -> dict[str, Any]:
    """Two machines become six and three; one is killed, and a worker of another one."""
    _come(run, 2)
    run.await_steps(_STEPS)
    _come(run, 4)
    run.await_(lambda: run.moved(1))
    run.await_steps(_STEPS)
    run.machines.happens("worker killed", np.random.default_rng(0))
    run.await_steps(_STEPS)
    run.machines.lose("agent killed", max(run.machines.agents))
    run.await_steps(_STEPS)
    for host in sorted(run.machines.agents)[-2:]:
        run.machines.agents.pop(host).send_signal(signal.SIGTERM)
    run.await_steps(2 * _STEPS)
    again = sum(each.get("made_again", 0) for each in run.machines.events if each["event"] == "resumed")
    return {"made_again": again, "samples": run.samples}


CASES: Final = MappingProxyType(
    {
        "lost": (lost, 6, 1, (0.5, 0.5, 0.5)),
        "slow": (slow, 12, 3, (0.6, 0.6, 0.2)),
        "schedule": (schedule, 6, 2, (0.3,) * 6),
    }
)
"""Events by case, with the number of workers, the least number of agents, and the cores of machines."""


def _come(run: Watched, count: int) -> None:
    for _ in range(count):
        run.machines.come()


def measure(case: str) -> dict[str, Any]:
    """One row."""
    happens, workers, least, cores = CASES[case]
    flags = (*_JOB, "--workers", str(workers), "--set", f"cluster.min_agents={least}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bounds = dict(enumerate(cores, start=2))
        with Hosts(2 + len(cores), _RATE_BITS, bounds) as hosts:
            try:
                run = Watched(folder, Machines(folder, flags, hosts, (1, len(cores))))
                row = happens(run)
                results = run.machines.stop()
            except BaseException:
                sys.stderr.write((folder / "log").read_text()[-20_000:])
                raise
        command = [sys.executable, "-P", "-m", "taihu", "train", *flags, "--steps", str(results["steps"])]
        command += ["--run-dir", "none", "--json", str(folder / "results.json"), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        undisturbed = json.loads((folder / "results.json").read_text())["parameters_sha256"]
    same = undisturbed == results["parameters_sha256"]
    return {"case": case, "workers": workers, "cores": list(cores), **row, "steps": results["steps"], "same": same}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| | workers | machines, cores | step before | step after | ratio | best | parameters |",
        "|" + "---|" * 8,
    ]
    for row in rows:
        same = "the same bits" if row["same"] else "**differ**"
        cores = ", ".join(f"{each:g}" for each in row["cores"])
        if "ratio" in row:
            before, after = (f"{1e3 * row[key]:.0f} ms" for key in ("before_s", "after_s"))
            times = f"{before} | {after} | {row['ratio']:.2f} | {row['ideal']:.2f}"
        else:
            times = f"{row['made_again']} steps made again of {row['steps']} | | |"
        lines.append(f"| {row['case']} | {row['workers']} | {cores} | {times} | {same} |")
    return "\n".join(lines)


def draw(row: dict[str, Any], path: Path) -> None:
    """Draw machines, steps a second and loss of the schedule, over time."""
    import matplotlib as mpl  # noqa: PLC0415 - the picture alone needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    seconds, agents, steps, losses = (
        np.array([each[key] for each in row["samples"]]) for key in ("s", "agents", "step", "loss")
    )
    figure, axes = plt.subplots(3, sharex=True, figsize=(7, 5), layout="constrained")
    axes[0].step(seconds, agents, where="post")
    axes[0].set_ylabel("machines")
    axes[0].set_ylim(0)
    window = round(2.0 / _LOOK_S)
    rate = (steps[window:] - steps[:-window]) / (seconds[window:] - seconds[:-window])
    axes[1].plot(seconds[window:], rate)
    axes[1].set_ylabel("steps a second")
    axes[1].set_ylim(0)
    axes[2].plot(seconds, losses, linewidth=0.8)
    axes[2].set_ylabel("loss of worker 0")
    axes[2].set_xlabel("seconds")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="separated by commas")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of the schedule")
    options = parser.parse_args()
    rows = load_rows(options.json)
    for case in options.cases.split(","):
        if case not in [row["case"] for row in rows]:
            rows.append(measure(case))
            save_rows(options.json, rows)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    publish(table(rows), _PAGE, options.docs)
    if options.picture is not None:
        draw(next(row for row in rows if row["case"] == "schedule"), options.picture)


if __name__ == "__main__":
    main()
