"""The exchange: bytes by direction, density, thresholds and their drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from taihu.report.charts import Bars, Figure, Lines, Missing, Section, Series, plain
from taihu.report.learning import over_steps, step_names
from taihu.report.run import Run
from taihu.report.values import BYTES, NUMBER, SECONDS, SHARE, binned, bins_of, items, known, number, text

_REFRESH_BINS: Final = 60
_MOST_UNITS: Final = 200


def traffic(run: Run) -> tuple[Section | None, list[Missing]]:
    """All figures of the exchange, and what there is none of."""
    figures = [
        *_bytes_over_run(run),
        *_bytes_by_member(run),
        *_spread_layers(run),
        *_density(run),
        *_drift(run),
        *_units(run),
    ]
    missing = []
    if not run.is_simulated and not items(run.results, "thresholds", "units"):
        missing.append(
            Missing("thresholds, density and drift", "taihu train --compression dlgs --density 0.01 has thresholds")
        )
    return (Section("exchange", "What was exchanged", figures) if figures else None), missing


def _bytes_over_run(run: Run) -> Iterator[Figure]:
    steps = run.steps
    if not steps.has("sent_bytes"):
        return
    series = [
        Series("sent", steps["sent_bytes"], "blue"),
        Series("received", steps["received_bytes"], "orange", dashed=True),
    ]
    total = {series_.name: sum(known(series_.values)) for series_ in series}
    whole = " and ".join(f"{BYTES.text(each)} {name}" for name, each in total.items())
    note = f"Worker 0, headers included. In all {whole}."
    yield Figure("Bytes of a step", over_steps(steps, series, BYTES), note)


def _bytes_by_member(run: Run) -> Iterator[Figure]:
    """Bytes of a step of every worker, or of one process of each kind that was simulated."""
    rows = [row for row in items(run.results, "by_rank") if isinstance(row, Mapping)]
    names = tuple(f"worker {number(row, 'rank') or 0:.0f}" for row in rows)
    sent, received = (tuple(number(row, f"bytes_{way}_per_step") for row in rows) for way in ("sent", "received"))
    title, note = "Bytes of a step by worker", "Means over the steady steps."
    processes = run.results.get("bytes_per_process")
    if isinstance(processes, Mapping):
        names = tuple(text(name) for name in processes)
        sent, received = (tuple(number(processes, name, way) for name in processes) for way in ("sent", "received"))
        title, note = "Bytes of a step by process", "Of the process of each kind that has the most, between hosts."
    if names:
        parts = (Series("sent", sent, "blue"), Series("received", received, "orange"))
        yield Figure(title, Bars("process", names, BYTES, parts), note)


def _spread_layers(run: Run) -> Iterator[Figure]:
    """The choice of each fully connected layer, of runs that may spread them over the workers."""
    layers = [row for row in items(run.results, "fc", "layers") if isinstance(row, Mapping)]
    if layers:
        rows = [
            (
                text(row, "name"),
                text(row, "choice"),
                *(SECONDS.text(number(row, f"{way}_seconds")) for way in ("data", "shard")),
            )
            for row in layers
        ]
        sent = BYTES.text(number(run.results, "fc", "bytes_sent_per_step"))
        note = f"By {text(run.results, 'fc', 'scheme')}: each worker sends {sent} of activations in a step."
        columns = ("layer", "choice", "exchanged, predicted", "spread, predicted")
        yield plain("Fully connected layers, exchanged or spread over the workers", columns, rows, note, left=2)


def _density(run: Run) -> Iterator[Figure]:
    steps = run.steps
    if text(run.results, "compression") in ("", "none") and set(known(steps["selected_ratio"])) <= {1.0}:
        return
    if not steps.has("selected_ratio"):
        return
    series = [Series("sent", steps["selected_ratio"], "blue")]
    asked = number(run.results, "density")
    if asked is not None:
        series.append(Series("asked for", (asked,) * len(steps), "red", dashed=True))
    note = "The share of the gradient that worker 0 sent."
    yield Figure("Density", over_steps(steps, series, SHARE), note)


def _drift(run: Run) -> Iterator[Figure]:
    """The drift of thresholds when they were made anew."""
    refreshes = ("thresholds", "refreshes")
    steps = items(run.results, *refreshes, "step")
    drifts = items(run.results, *refreshes, "drift")
    by_step: dict[float, list[float]] = {}
    for place in range(min(len(steps), len(drifts))):
        step, drift = number(steps, place), number(drifts, place)
        if step is not None and drift is not None:
            by_step.setdefault(step, []).append(drift)
    if not by_step:
        return
    ascending = sorted(by_step)
    bins = bins_of(len(ascending), _REFRESH_BINS)
    places, names = step_names(ascending, bins)
    middle = binned([median(by_step[step]) for step in ascending], bins)
    most = tuple(max(max(by_step[step]) for step in ascending[each.start : each.stop]) for each in bins)
    series = (
        Series("median", middle, "blue", dots=True),
        Series("largest", most, "orange"),
    )
    note = "The relative change of thresholds when they were made anew, over the layers, or groups, of worker 0."
    every = number(run.results, *refreshes, "every") or 1.0
    if every > 1:
        note += f" Of so long a run, every {every:.0f}th step was noted."
    yield Figure("Drift of thresholds", Lines("step", places, names, NUMBER, series), note)


def _units(run: Run) -> Iterator[Figure]:
    rows = [row for row in items(run.results, "thresholds", "units") if isinstance(row, Mapping)][:_MOST_UNITS]
    if not rows:
        return
    names = tuple(text(row, "name") for row in reversed(rows))
    drift, largest, ratio = (
        tuple(number(row, key) for row in reversed(rows))
        for key in ("median_drift", "largest_drift", "selected_per_kept")
    )
    parts = (Series("median drift", drift, "blue"),)
    marks = (Series("largest drift", largest, "orange"),)
    if known(drift):
        yield Figure("Drift by layer", Bars("layer or group", names, NUMBER, parts, marks), "In forward order.")
    if known(ratio):
        chart = Bars("layer or group", names, SHARE, (Series("selected", ratio, "teal"),))
        note = "Values selected over those that the density asks for: 100 % are as many."
        yield Figure("Selected over asked for, by layer", chart, note)
