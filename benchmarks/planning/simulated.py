"""Simulated steps beside real ones: `python -m benchmarks simulated --help`.

Every row is a run of real processes, each on a host of its own behind a shaped link (see `base.network`; needs
root), and its simulation: by what that run's calibration measured of compute and selection, the link's rate, and what
`base.machine` has measured before of messages, sums and the share of compute that takes a processor. A run with
spread layers is simulated by the profile of the same job with whole ones, as a run measures only what it exchanges.
A row's time is the median of the steps behind the calibration, of the slowest worker.

Where compute is `paced` its time passes and costs no processor (`benchmarks/models/paced.py`), so that each host has
a processor of its own, as the simulator's hosts do; everything else, the exchange and the products of the small
layers, is computed. Rows with a model of the zoo compute all of it, on the cores that all processes share.

Rows that the file of --json holds are not measured again, and all are simulated anew. *disturbed* is the share of the
processors' time during a run that others had: other processes here, and other guests of a virtual machine's host.
Rows with more of it than --again are measured again.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.machine import (
    MACHINE,
    PACED,
    Processors,
    awake,
    calibrated,
    compute_share,
    machines_keys,
    settings_of,
)
from benchmarks.base.roles import run_job
from benchmarks.base.rows import in_page, load_rows, save_rows
from taihu.cli.planning.link_rate import parse_rate
from taihu.core.job import Job, load_job, parse_assignments
from taihu.core.planner.profile import Profile
from taihu.simulation.compute import of_measured
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.machines import ethernet
from taihu.simulation.placement import Placement

__all__ = ["RUNS", "SOURCE", "Run", "compared", "simulated", "table"]

SOURCE: Final = "measured by benchmarks.planning.simulated"
_SIMULATED_STEPS: Final = 12
# Steps that are short, or whose times differ much, are measured more often.
_MANY_STEPS: Final = 60
_DLGS: Final = MappingProxyType({"compression.method": "dlgs"})


@dataclass(frozen=True)
class Run:
    """A job of `workers` and `servers`, 0 in a ring; `settings` are what it sets beside what all do.

    `model` is a function of `benchmarks/models/paced.py`, or of the zoo. `steps` come behind two calibrations of so
    many steps each.
    """

    rate: str
    servers: int
    workers: int
    model: str
    batch: int
    settings: Mapping[str, object] = field(default_factory=dict)
    steps: int = 24
    calibration: int = 10

    @property
    def name(self) -> str:
        """A text that no other run has."""
        who = f"{self.servers}+{self.workers}" if self.servers else f"ring of {self.workers}"
        told = (f"{key.rpartition('.')[2]} {value}" for key, value in self.settings.items())
        return ", ".join([f"{self.rate}, {who}, {self.model}, batch {self.batch}", *told])

    @property
    def is_paced(self) -> bool:
        """Whether its compute is modelled."""
        return self.model in PACED

    @property
    def whole(self) -> Run:
        """The same run without spread layers."""
        settings = {key: value for key, value in self.settings.items() if not key.startswith("exchange.fc")}
        return replace(self, settings=settings)

    def all_settings(self) -> dict[str, object]:
        """The job's, by key."""
        of_all = settings_of(
            self.model, self.batch, workers=self.workers, calibration=self.calibration, steps=self.steps
        )
        kind = "server" if self.servers else "ring"
        return {**of_all, "exchange.kind": kind, "cluster.servers": max(1, self.servers), **self.settings}

    def job(self) -> Job:
        """The job."""
        return load_job(None, parse_assignments([f"{key}={value}" for key, value in self.all_settings().items()]))


RUNS: Final = (
    Run("100mbit", 1, 2, "small", 16),
    Run("100mbit", 2, 3, "small", 16, {"train.precision": "bf16"}),
    Run("100mbit", 1, 3, "medium", 16, {**_DLGS, "compression.density": 0.1}),
    Run("100mbit", 1, 6, "medium", 16, {**_DLGS, "compression.density": 0.01}),
    Run("100mbit", 0, 3, "small", 16),
    Run("100mbit", 0, 4, "medium", 16, {**_DLGS, "compression.density": 0.05}),
    Run("100mbit", 2, 2, "small", 16, {"exchange.zero": 3}),
    Run("1gbit", 1, 3, "medium", 8),
    Run("1gbit", 2, 4, "medium", 8, {"exchange.zero": 3, "exchange.bucket_bytes": 1 << 20}),
    Run("1gbit", 2, 4, "medium", 8, {"exchange.zero": 3, "train.precision": "bf16"}),
    Run("1gbit", 1, 3, "large", 8, {**_DLGS, "compression.density": 0.05}),
    Run("1gbit", 0, 6, "medium", 8),
    Run("1gbit", 0, 4, "medium", 8, {"exchange.zero": 1}),
    Run("1gbit", 0, 4, "medium", 8, {"exchange.zero": 3, "exchange.bucket_bytes": 1 << 20}),
    Run("1gbit", 0, 3, "large", 8, {"exchange.zero": 2, "train.precision": "bf16"}),
    Run("1gbit", 0, 4, "large", 8),
    Run("1gbit", 0, 4, "headed", 16),
    Run("1gbit", 0, 4, "headed", 16, {"exchange.fc": "shard"}),
    Run("1gbit", 2, 2, "large", 8),
    Run("100mbit", 2, 2, "headed", 16),
    Run("100mbit", 2, 2, "headed", 16, {"exchange.fc": "shard", "exchange.fc_scheme": "slices"}),
    Run("100mbit", 2, 2, "headed", 16, {"exchange.fc": "shard", "exchange.fc_scheme": "turns"}),
    Run("10gbit", 1, 2, "large", 8, steps=_MANY_STEPS),
    Run("10gbit", 2, 3, "large", 8, {"exchange.zero": 3}, steps=_MANY_STEPS),
    Run("10gbit", 0, 3, "large", 8, steps=_MANY_STEPS),
    Run("10gbit", 0, 2, "large", 8, {**_DLGS, "compression.density": 0.01}, steps=_MANY_STEPS),
    Run("1gbit", 1, 2, "cifar10_quick", 32, steps=_MANY_STEPS, calibration=_MANY_STEPS // 2),
    Run("100mbit", 0, 2, "resnet20", 16),
)
"""Runs with whole layers stand before those that are simulated by their profile."""


def measure(run: Run) -> dict[str, Any]:
    """One row, which is not simulated yet."""
    processors = Processors()
    with tempfile.TemporaryDirectory() as folder:
        settings = {**run.all_settings(), "run.dir": f"{folder}/run"}
        results = run_job(settings, run.rate, servers=run.servers, workers=run.workers)
        with (Path(folder) / "run" / "steps.csv").open() as file:
            steps = [float(row["step_seconds"]) for row in csv.DictReader(file)]
    slowest = max(results, key=lambda result: float(result["seconds_per_step"]["median"]))
    keys = ("seconds_per_step", "seconds_compute", "seconds_compress", "seconds_exchange", "seconds_wait")
    row = {key: slowest[key] for key in keys}
    sent, received = (max(result[f"bytes_{way}_per_step"] for result in results) for way in ("sent", "received"))
    return {
        "run": run.name,
        "disturbed": processors.disturbed(),
        **row,
        "steps": steps,
        "bytes_sent_per_step": sent,
        "bytes_received_per_step": received,
        "group_layers": results[0]["group_layers"],
        "profile": results[0]["profile"],
    }


def simulated(run: Run, profile: Profile, machine: Mapping[str, Any]) -> Simulated:
    """The steps of a run on hosts of `machine`, with links of its rate, by the costs that `profile` has."""
    network, machines = ethernet(parse_rate(run.rate))
    share = machine["compute_shares"][run.model]
    placement = Placement(
        replace(network, alpha_seconds=machine["alpha_seconds"]),
        replace(machines, **machines_keys(machine, run.rate, servers=run.servers), core_compute_share=share),
    )
    compute = of_measured(profile)
    return simulate_job(run.job(), profile.layout, compute, placement, profile, steps=_SIMULATED_STEPS)


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with its simulation; the first one is of the machine."""
    by_name = {row["run"]: row for row in rows}
    machine = by_name[MACHINE]
    runs = {run.name: run for run in RUNS}
    found = []
    for row in rows:
        run = runs.get(row["run"])
        profile = None if run is None or run.whole.name not in by_name else by_name[run.whole.name]["profile"]
        if run is None or profile is None:
            found.append(row)
            continue
        step = simulated(run, Profile.from_json(profile), machine).to_json()
        deviation = step["seconds_per_step"] / row["seconds_per_step"]["median"] - 1.0
        found.append({**row, "simulated": step, "deviation": deviation})
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows by their links as Markdown, each with the run that is furthest off, and what all deviations are."""
    lines = [
        "| links | runs | median | at most | the run furthest off: measured s, simulated s |",
        "|---|---:|---:|---:|---|",
    ]
    known = {run.name for run in RUNS}
    shown = [row for row in rows if row["run"] in known and "deviation" in row]
    by_links = {links: [row for row in shown if _links(row) == links] for links in map(_links, shown)}
    lines += [_line(links, each) for links, each in by_links.items()]
    deviations = [abs(row["deviation"]) for row in rows if "deviation" in row]
    if deviations:
        lines += ["", f"{len(deviations)} runs: median {median(deviations):.1%}, at most {max(deviations):.1%}."]
    return "\n".join(lines)


def _links(row: dict[str, Any]) -> str:
    """The links of a run, by which its name begins."""
    return str(row["run"]).partition(", ")[0]


def _line(links: str, rows: Sequence[dict[str, Any]]) -> str:
    deviations = [abs(row["deviation"]) for row in rows]
    furthest = rows[deviations.index(max(deviations))]
    cells = [links, str(len(rows)), f"{median(deviations):.1%}", f"{max(deviations):.1%}", _told(furthest)]
    return f"| {' | '.join(cells)} |"


def _told(row: dict[str, Any]) -> str:
    measured, simulated_s = row["seconds_per_step"]["median"], row["simulated"]["seconds_per_step"]
    return f"{row['run'].partition(', ')[2]}: {measured:.4f}, {simulated_s:.4f}"


def _measure_missing(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    done = {row["run"] for row in rows}
    if MACHINE not in done:
        batches = {run.model: run.batch for run in RUNS}
        shares = {model: compute_share(model, batch) for model, batch in batches.items()}
        rows.insert(0, {"run": MACHINE, **calibrated(), "compute_shares": shares})
        save_rows(options.json, rows)
    for run in RUNS:
        if run.name not in done and options.only in run.name:
            rows.append(measure(run))
            save_rows(options.json, rows)
            print(f"{run.name}: {_told(compared(rows)[-1])}", flush=True)


def main() -> None:
    """Measure what is missing, and simulate all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs whose name holds this text")
    parser.add_argument("--again", type=float, metavar="SHARE", help="measure again what was disturbed by more")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    if options.again is not None:
        rows = [row for row in rows if row.get("disturbed", 1.0) <= options.again]
    with awake():
        _measure_missing(rows, options)
    rows = compared(rows)
    save_rows(options.json, rows)
    print(table(rows))
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), SOURCE, table(rows)))


if __name__ == "__main__":
    main()
