"""Choices of `taihu plan search` beside real runs of the best: `python -m benchmarks search --help`.

For every job and network the search ranks the ways to run the job; its three best, of which no two differ in their
plan or ZeRO's stage alone, are run with real processes, each host a namespace behind a shaped link (see
`base.network`; needs root). What counts is whether the first of them is the fastest measured one, or within 5 %
of it. Compute and selection are taken from the profile of one run of each model, through a server with compressed
gradients, and the links' start-up and the machine's own share from allreduces (`planning.simulated`): none of the
compared runs is looked at before.

Compute is `paced`: its time passes and costs no processor (`benchmarks/models/paced.py`), so that each host has a
processor of its own for it. A run's time is the median of the steps behind the calibration, of the slowest worker; of
several --rounds that of the fastest, which was disturbed the least.

Ways that the file of --json holds are not run again; all jobs are searched anew.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.machine import MACHINE, calibrated, compute_share, machines_keys, settings_of
from benchmarks.base.roles import run_job
from benchmarks.base.rows import in_page, load_rows, save_rows
from taihu.cli.planning.search import AskedSearch, searched
from taihu.cli.planning.search_tables import exchange_in_words
from taihu.core.job import Job, load_job, parse_assignments
from taihu.core.job.toml import toml_value
from taihu.search.search import Found
from taihu.search.ways import Way

__all__ = ["PAIRS", "SOURCE", "Pair", "table"]

SOURCE: Final = "measured by benchmarks.planning.search"
_CALIBRATION: Final = 8
_BEST: Final = 3
_CLOSE: Final = 0.05
# Settings in which the three ways are not to differ alone.
_ALIKE: Final = ("plan", "zero")
# Steps behind the calibration: so many, or as many as take so long.
_LEAST_STEPS, _MOST_STEPS, _RUN_S = 12, 60, 5.0
_DLGS: Final = MappingProxyType({"compression.method": "dlgs", "compression.density": 0.05})


@dataclass(frozen=True)
class Pair:
    """A job of `workers` on `hosts` behind links of a rate; `settings` are what it sets beside what all do."""

    rate: str
    model: str
    batch: int
    workers: int
    hosts: int
    settings: Mapping[str, object] = field(default_factory=dict)
    min_density: float | None = None
    precisions: str | None = None
    memory: str | None = None

    @property
    def name(self) -> str:
        """A text that no other pair has."""
        allowed = [f"density {self.min_density:g}"] if self.min_density is not None else []
        allowed += [self.precisions.replace(",", " or ")] if self.precisions is not None else []
        allowed += [f"{self.memory} a host"] if self.memory is not None else []
        own = [f"{key.rpartition('.')[2]} {value}" for key, value in self.settings.items()]
        sizes = f"{self.model}, batch {self.batch}, {self.workers} workers, {self.hosts} hosts"
        return ", ".join([sizes, *own, *allowed])

    def job(self) -> Job:
        """The job as it is: through one server, everything sent."""
        return load_job(None, parse_assignments([f"{key}={value}" for key, value in self._settings().items()]))

    def _settings(self) -> dict[str, object]:
        of_all = settings_of(
            self.model, self.batch, workers=self.workers, calibration=_CALIBRATION, steps=_MOST_STEPS
        )
        return {**of_all, "cluster.servers": 1, **self.settings}


PAIRS: Final = (
    Pair("100mbit", "small", 16, 4, 4),
    Pair("100mbit", "medium", 16, 3, 4),
    Pair("100mbit", "medium", 16, 4, 5, min_density=0.05),
    Pair("100mbit", "headed", 16, 3, 3),
    Pair("100mbit", "small", 16, 3, 3, precisions="fp32,bf16"),
    Pair("1gbit", "medium", 8, 2, 3),
    Pair("1gbit", "large", 8, 2, 3),
    Pair("1gbit", "large", 8, 3, 4, min_density=0.01),
    Pair("1gbit", "headed", 16, 2, 2),
    Pair("10gbit", "large", 8, 2, 3),
)


def searched_for(pair: Pair, profile: Mapping[str, Any], machine: Mapping[str, Any]) -> list[Found]:
    """The best ways to run the job of a pair, no two of which differ in their plan or stage alone."""
    with tempfile.TemporaryDirectory() as folder:
        machines, measured = Path(folder) / "machines.toml", Path(folder) / "profile.json"
        machines.write_text("\n".join(_machine_lines(pair, machine)))
        measured.write_text(json.dumps({"profile": profile}))
        asked = AskedSearch(str(machines), measured, pair.min_density, pair.precisions, best=12 * _BEST)
        ranking = searched(pair.job(), asked).ranking
    best: dict[tuple[object, ...], Found] = {}
    for each in ranking:
        way = {key: value for key, value in each.candidate.way.to_json().items() if key not in _ALIKE}
        best.setdefault(tuple(way.values()), each)
    return list(best.values())[:_BEST]


def _machine_lines(pair: Pair, machine: Mapping[str, Any]) -> Iterator[str]:
    yield "[network]"
    yield f"rate = '{pair.rate}'"
    yield f"alpha_seconds = {machine['alpha_seconds']}"
    yield "[machines]"
    yield from (f"{key} = {value}" for key, value in machines_keys(machine, pair.rate, servers=0).items())
    yield f"core_compute_share = {machine['compute_shares'][pair.model]}"
    yield f"hosts = {pair.hosts}"
    if pair.memory is not None:
        yield f"memory = '{pair.memory}'"


def profile_of(model: str, batch: int) -> dict[str, Any]:
    """The profile of a model: through one server, with compressed gradients."""
    job = Pair("1gbit", model, batch, 2, 3, settings=_DLGS).job()
    results = _run(job, "1gbit", beside=False, steps=_LEAST_STEPS)
    profile: dict[str, Any] = results[0]["profile"]
    return profile


def measure(pair: Pair, found: Found, known: Sequence[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """The real steps of a way to run a job, of the least disturbed of so many runs; those that are `known` count."""
    way, predicted = found.candidate.way.to_json(), found.step.seconds
    run = next((run for run in known if run["way"] == way), None)
    made = 0 if run is None else run.get("rounds", 1)
    if run is not None and made >= rounds:
        return {**run, "predicted_seconds_per_step": predicted}
    seconds = _seconds(pair, found)
    if run is not None and run["seconds_per_step"]["median"] <= seconds["median"]:
        seconds = run["seconds_per_step"]
    return {"way": way, "predicted_seconds_per_step": predicted, "seconds_per_step": seconds, "rounds": made + 1}


def _seconds(pair: Pair, found: Found) -> dict[str, float]:
    """Seconds of the steps of one run, of the slowest worker."""
    candidate, predicted = found.candidate, found.step.seconds
    steps = round(min(_MOST_STEPS, max(_LEAST_STEPS, _RUN_S / predicted)))
    results = _run(candidate.job, pair.rate, beside=candidate.way.beside, steps=steps)
    return max((result["seconds_per_step"] for result in results), key=lambda seconds: float(seconds["median"]))


def _run(job: Job, rate: str, *, beside: bool, steps: int) -> list[dict[str, Any]]:
    given = job.model_dump(exclude={"name"}, exclude_unset=True)
    settings = {f"{table}.{key}": toml_value(value) for table, of in given.items() for key, value in of.items()}
    settings["train.steps"] = str(2 * _CALIBRATION + steps)
    return run_job(settings, rate, servers=job.servers, workers=job.cluster.workers, colocated=beside)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The pairs by their links as Markdown, each with the one whose choice is furthest behind."""
    lines = [
        "| links | pairs | choice is the fastest | at most over it | there: job; choice, predicted s, measured s |",
        "|---|---:|---:|---:|---|",
    ]
    done = [row for row in rows if "runs" in row]
    for rate in dict.fromkeys(row["rate"] for row in done):
        alike = [row for row in done if row["rate"] == rate]
        worst = max(alike, key=_excess)
        fastest = sum(_excess(row) == 0 for row in alike)
        choice = ", ".join(_cells(Way.from_json(worst["runs"][0]["way"]), worst["runs"][0]))
        told = f"{worst['pair'].partition(', ')[2]}; {choice}"
        lines.append(f"| {rate} | {len(alike)} | {fastest} | {_excess(worst):+.1%} | {told} |")
    right = sum(_excess(row) == 0 for row in done)
    close = sum(_excess(row) <= _CLOSE for row in done)
    lines += ["", f"{len(done)} pairs: the choice is the fastest in {right}, within {_CLOSE:.0%} of it in {close}."]
    return "\n".join(lines)


def _cells(way: Way, run: dict[str, Any]) -> tuple[str, str, str]:
    sent = [] if way.method.key == "none" else [f"{way.method} {way.density:g}"]
    other = [way.fc != "data" and f"fc {way.fc}", way.precision != "fp32" and way.precision, way.plan]
    told = ", ".join([exchange_in_words(way), *sent, f"zero {way.zero}", *(each for each in other if each)])
    return told, f"{run['predicted_seconds_per_step']:.4f}", f"{run['seconds_per_step']['median']:.4f}"


def _excess(row: dict[str, Any]) -> float:
    """The share by which the choice takes longer than the fastest of the three."""
    measured = [float(run["seconds_per_step"]["median"]) for run in row["runs"]]
    return measured[0] / min(measured) - 1.0


def main() -> None:
    """Measure what is missing, and show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pairs whose rate and name hold this text")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    parser.add_argument("--rounds", type=int, default=1, help="runs of every way, of which the fastest counts")
    parser.add_argument("--dry", action="store_true", help="search, and run nothing but what the search takes")
    options = parser.parse_args()
    rows = load_rows(options.json)
    known = {row.get("pair") or row.get("profile_of") or row.get("run"): row for row in rows}

    def keep(name: str, row: dict[str, Any]) -> dict[str, Any]:
        rows.append(row)
        known[name] = row
        save_rows(options.json, rows)
        return row

    shares = {pair.model: compute_share(pair.model, pair.batch) for pair in PAIRS}
    machine = known.get(MACHINE, {})
    if "compute_shares" not in machine:
        # None yet, or of a table that was measured before these were.
        machine = keep(MACHINE, {"run": MACHINE, **calibrated(), "compute_shares": shares})
    for pair in PAIRS:
        name = f"{pair.rate}, {pair.name}"
        if options.only not in name:
            continue
        of = f"{pair.model}, batch {pair.batch}"
        measured = known.get(of) or keep(of, {"profile_of": of, "profile": profile_of(pair.model, pair.batch)})
        best = searched_for(pair, measured["profile"], machine)
        for each in best:
            print(f"{name}: {each.step.seconds:.4f} s {each.candidate.way}", flush=True)
        if not options.dry:
            before = known.get(name, {"pair": name, "rate": pair.rate, "runs": []})
            before["runs"] = [measure(pair, each, before["runs"], options.rounds) for each in best]
            if name not in known:
                rows.append(before)
            known[name] = before
            save_rows(options.json, rows)
            print(table([before]).splitlines()[2], flush=True)
    print(table(rows))
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), SOURCE, table(rows)))


if __name__ == "__main__":
    main()
