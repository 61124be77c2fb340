"""The processes of a run: who was slower, what they hold, what happened to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from taihu.report.charts import Bars, Colour, Figure, Missing, Section, Series, plain
from taihu.report.run import Run
from taihu.report.values import BYTES, SECONDS, items, known, number, text

_KINDS: Final[Mapping[str, Colour]] = MappingProxyType(
    {
        "parameters": "blue",
        "gradients": "orange",
        "optimizer": "purple",
        "residuals": "gold",
        "buffers": "grey",
        "activations": "teal",
        "data": "red",
    }
)


def members(run: Run) -> tuple[Section | None, list[Missing]]:
    """Figures of the processes, and what there is none of."""
    skew, memory, events = list(_skew(run)), list(_memory(run)), list(_events(run))
    missing = []
    if not skew and not run.is_simulated:
        missing.append(Missing("the skew of ranks", "taihu train notes it; of other runs, taihu top HOST:PORT"))
    if not memory:
        missing.append(Missing("memory against plan", "taihu plan memory RUN/settings.toml plans it"))
    if not events and not run.is_simulated:
        missing.append(Missing("events", "a run folder of this version has them"))
    figures = [*skew, *memory, *events]
    return (Section("members", "The processes", figures) if figures else None), missing


def _skew(run: Run) -> Iterator[Figure]:
    rows = [row for row in items(run.results, "by_rank") if isinstance(row, Mapping)]
    computed = known([number(row, "seconds_compute", "median") for row in rows])
    if len(rows) < 2 or not computed:
        return
    names = tuple(f"worker {number(row, 'rank') or 0:.0f}" for row in rows)

    def column(name: str, of: str = "median") -> tuple[float | None, ...]:
        return tuple(number(row, f"seconds_{name}", of) for row in rows)

    parts = (Series("compute", column("compute"), "blue"), Series("wait", column("wait"), "orange"))
    skew = max(computed) / median(computed) if median(computed) else 1.0
    note = f"Medians over the steady steps. The longest median of compute is {skew:.2f} times the one in the middle."
    slowest = {name: seconds for name, seconds in zip(names, column("compute", "max"), strict=True) if seconds}
    if slowest:
        name = max(slowest, key=slowest.__getitem__)
        note += f" The longest compute of any step was {SECONDS.text(slowest[name])}, of {name}."
    yield Figure("Time of a step by worker", Bars("worker", names, SECONDS, parts), note)


def _memory(run: Run) -> Iterator[Figure]:
    results = run.results
    simulated = results.get("memory_per_process")
    if isinstance(simulated, Mapping):
        names = tuple(text(role) for role in simulated)
        values = tuple(number(simulated, role) for role in simulated)
        bars: tuple[Series, ...] = (Series("in all", values, "blue"),)
        told = [name for name in _KINDS if any(number(results, "memory_by_kind", role, name) for role in names)]
        if told:
            bars = tuple(
                Series(kind, tuple(number(results, "memory_by_kind", role, kind) for role in names), _KINDS[kind])
                for kind in told
            )
        chart = Bars("process", names, BYTES, bars)
        without = "examples" if "activations" in told else "activations"
        yield Figure("Memory by process, planned", chart, f"Without {without}.")
    of_worker = results.get("memory")
    rows = [row for row in items(results, "memory") if isinstance(row, Mapping)]
    if isinstance(of_worker, Mapping):
        rows = [{"process": f"worker {number(results, 'rank') or 0:.0f}", **of_worker}]
    if not rows:
        return
    names = tuple(text(row, "process") for row in rows)
    kinds = [name for name in _KINDS if any(number(row, "planned", name) for row in rows)]
    parts = tuple(Series(name, tuple(number(row, "planned", name) for row in rows), _KINDS[name]) for name in kinds)
    grown = tuple(_grown(row) for row in rows)
    marks = (Series("measured", grown, "red"),) if known(grown) else ()
    if parts or marks:
        note = (
            "What was planned, by kind; the stroke is by how much the process has grown at most since it began to "
            "make its model, with the code that it has loaded since then."
        )
        yield Figure("Memory, planned and measured", Bars("process", names, BYTES, parts, marks), note)


def _grown(row: Mapping[str, Any]) -> float | None:
    before, most = number(row, "before_bytes"), number(row, "peak_bytes")
    return None if before is None or most is None else max(0.0, most - before)


def _events(run: Run) -> Iterator[Figure]:
    rows, first = [], None
    for event in run.events:
        after, at = number(event, "step"), _instant(event)
        first = first or at
        elapsed = None if at is None or first is None else (at - first).total_seconds()
        when = "-" if after is None else f"{after:.0f}"
        rows.append((when, SECONDS.text(elapsed), text(event, "event"), _facts(event)))
    if rows:
        began = f"Times count from {first:%Y-%m-%d %H:%M:%S %Z}." if first is not None else ""
        yield plain("Events", ("after step", "after", "event", "what"), rows, began, left=4)


def _instant(event: Mapping[str, Any]) -> datetime | None:
    try:
        found = datetime.fromisoformat(text(event, "time"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _facts(event: Mapping[str, Any]) -> str:
    """All that an event says beside its name."""
    facts = []
    for key in event:
        value, told = number(event, key), text(event, key)
        # Of plans whose steps are not predicted the time is 0.
        if (
            key in {"step", "time", "event"}
            or (value is None and not told)
            or (key, value) == ("predicted_seconds", 0)
        ):
            continue
        shown = told or (SECONDS.text(value) if str(key).endswith("_seconds") else f"{value:,.6g}")
        facts.append(f"{text(key).removesuffix('_seconds').replace('_', ' ')} {shown}")
    return ", ".join(facts)
