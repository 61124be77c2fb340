"""Runs at an SW26010's pace beside their simulation: `python -m benchmarks paced_processor --help`.

Every row is a run of real processes, each on a host of its own behind a shaped link (see `base.network`; needs root),
whose forward and backward take so many times as long as on the processor (`cluster.pace`), so that the processors of
this machine, which all hosts share, keep up; and what `taihu simulate run` says of the same job. The links are made
slower by nothing: the pace is that of compute alone. Rows that the file of --json holds are not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.base.roles import run_job
from benchmarks.base.rows import load_rows, publish, save_rows

__all__ = ["RUNS", "Run", "table"]

_PAGE: Final = "measured by benchmarks.planning.paced_processor"
_STEPS: Final = 30
_CALIBRATION: Final = 6
_RUNS_OF_A_ROW: Final = 3


@dataclass(frozen=True)
class Run:
    """One row: a model, how it is exchanged, a rate of the links, the pace, and further settings."""

    model: str
    servers: int
    workers: int
    rate: str
    pace: float
    more: tuple[tuple[str, str], ...] = ()
    batch: int = 8

    @property
    def name(self) -> str:
        """The members, as tables call them."""
        members = f"{self.servers} + {self.workers}" if self.servers else f"ring of {self.workers}"
        return ", ".join([members, *(f"{key.rpartition('.')[2]} {value}" for key, value in self.more)])

    def settings(self) -> Mapping[str, object]:
        """The job."""
        kind = {} if self.servers else {"exchange.kind": "ring"}
        return {
            "model.name": self.model,
            "data.name": "synthetic:3x32x32",
            "train.steps": _STEPS,
            "train.batch": self.batch,
            "train.evaluate": "false",
            "exchange.calibration_steps": _CALIBRATION,
            "exchange.plan": "bucket:100kB",
            "cluster.servers": max(1, self.servers),
            "cluster.workers": self.workers,
            "cluster.threads": 1,
            "cluster.compute": "sw26010",
            "cluster.pace": self.pace,
            **kind,
            **dict(self.more),
        }


RUNS: Final = (
    Run("resnet20", 0, 4, "1gbit", 20.0),
    Run("resnet20", 0, 4, "100mbit", 20.0),
    Run("resnet20", 1, 4, "100mbit", 20.0),
    Run("cifar10_quick", 0, 4, "100mbit", 40.0),
    Run("resnet20", 0, 4, "100mbit", 20.0, (("train.recompute", "memory"),)),
    Run("cifar10_quick", 0, 4, "100mbit", 40.0, (("exchange.fc", "shard"),)),
    Run("cifar10_quick", 0, 4, "100mbit", 80.0, (("exchange.fc", "shard"),)),
)


def measure(run: Run) -> dict[str, Any]:
    """A row: median steps of the slowest worker, the median of runs and all of them, and of the simulation."""
    runs = []
    for _ in range(_RUNS_OF_A_ROW):
        results = run_job(run.settings(), run.rate, servers=run.servers, workers=run.workers)
        runs.append((max(results, key=lambda each: float(each["seconds_per_step"]["median"])), results))
    runs.sort(key=lambda each: float(each[0]["seconds_per_step"]["median"]))
    slowest, results = runs[len(runs) // 2]
    modelled = slowest["modelled"]
    return {
        "model": run.model,
        "members": run.name,
        "rate": run.rate,
        "pace": run.pace,
        "seconds_per_step": slowest["seconds_per_step"]["median"],
        "seconds_of_runs": [each["seconds_per_step"]["median"] for each, _ in runs],
        "seconds_wait": slowest["seconds_wait"]["median"],
        "late_seconds": max(each["modelled"]["late_seconds"] for each in results),
        "modelled_seconds": run.pace
        * sum(modelled[f"{part}_seconds"] for part in ("forward", "backward", "recompute")),
        "simulated_seconds": simulated(run),
    }


def simulated(run: Run) -> float:
    """Seconds of a step by the command that users type."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        flags = [f"--set={key}={value}" for key, value in run.settings().items()]
        command = [sys.executable, "-P", "-m", "taihu", "simulate", "run", *flags]
        command += ["--network", f"ethernet:{run.rate}", "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return float(json.loads(file.read_text())["seconds_per_step"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | members | links | pace | step, s | simulated, s | away by |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        away = row["simulated_seconds"] / row["seconds_per_step"] - 1.0
        lines.append(
            f"| {row['model']} | {row['members']} | {row['rate']} | {row['pace']:g} "
            f"| {row['seconds_per_step']:.4f} | {row['simulated_seconds']:.4f} | {away:+.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure the rows that are missing, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    done = {(row["model"], row["members"], row["rate"], row["pace"]) for row in rows}
    for run in RUNS:
        if (run.model, run.name, run.rate, run.pace) not in done:
            rows.append(measure(run))
            save_rows(options.json, rows)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
