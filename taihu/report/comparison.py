"""Several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from taihu.report.charts import Bars, Colour, Figure, Lines, Section, Series, plain
from taihu.report.learning import loss_figure, merged, tests_of
from taihu.report.run import Run, StepTable
from taihu.report.summary import figures_of
from taihu.report.values import NUMBER, SECONDS, SHARE, Unit, known, number, text

_COLOURS: Final[tuple[Colour, ...]] = ("blue", "orange", "teal", "purple", "gold", "red", "grey")


def with_names(runs: Sequence[Run]) -> list[Run]:
    """The runs, each with a name of its own."""
    found: list[Run] = []
    for run in runs:
        names = {other.name for other in found}
        number_ = next(place for place in range(1, len(runs) + 1) if _numbered(run.name, place) not in names)
        found.append(run.named(_numbered(run.name, number_)))
    return found


def _numbered(name: str, place: int) -> str:
    return name if place == 1 else f"{name} ({place})"


def compared(runs: Sequence[Run]) -> list[Section]:
    """The sections of a page of several runs."""
    figures = [_figures(runs), *_curves(runs), *_parts(runs)]
    sections = [Section("comparison", "Beside each other", figures)]
    different = list(_settings(runs))
    if different:
        columns = ("key", *(text(run.name) for run in runs))
        table = plain("Settings that differ", columns, different, left=len(columns))
        sections.append(Section("settings", "Settings", [table]))
    return sections


def _figures(runs: Sequence[Run]) -> Figure:
    told = [{name: value for name, value, _ in figures_of(run)} for run in runs]
    names = dict.fromkeys(name for each in told for name in each)
    rows = [(name, *(each.get(name, "-") for each in told)) for name in names]
    return plain("What came of them", ("", *(text(run.name) for run in runs)), rows)


def _curves(runs: Sequence[Run]) -> Iterator[Figure]:
    tests = [tests_of(run) for run in runs]
    for title, tables, column in (
        ("Loss of worker 0", [run.steps for run in runs], "worker_0_loss"),
        ("Loss on the test set", tests, "test_loss"),
    ):
        chart = _merged(runs, tables, column, NUMBER)
        if chart is not None:
            yield loss_figure(title, chart)
    chart = _merged(runs, tests, "test_accuracy", SHARE)
    if chart is not None:
        yield Figure("Accuracy on the test set", replace(chart, from_zero=False))
    chart = _merged(runs, [_over_time(run) for run in runs], "test_accuracy", SHARE)
    if chart is not None:
        names = tuple(map(SECONDS.text, chart.places))
        over = replace(chart, over="seconds of steps", names=names, from_zero=False)
        yield Figure("Accuracy over time", over, "Seconds are those of worker 0's steps until then.")


def _merged(runs: Sequence[Run], tables: Sequence[StepTable], column: str, unit: Unit) -> Lines | None:
    """A line of each run, which keeps its colour in all charts."""
    columns = [
        (text(run.name), table, column, _COLOURS[place % len(_COLOURS)])
        for place, (run, table) in enumerate(zip(runs, tables, strict=True))
        if table.has(column)
    ]
    return merged(columns, unit)


def _over_time(run: Run) -> StepTable:
    """The tests of a run by the seconds of all steps until then, in place of their step."""
    seconds = list(accumulate(value or 0.0 for value in run.steps["step_seconds"]))
    until = dict(zip(run.steps["step"], seconds, strict=True))
    tests = tests_of(run)
    return StepTable(
        {
            "step": tuple(until.get(step, 0.0) for step in tests["step"]),
            "test_accuracy": tuple(
                value if step in until else None
                for step, value in zip(tests["step"], tests["test_accuracy"], strict=True)
            ),
        }
    )


def _parts(runs: Sequence[Run]) -> Iterator[Figure]:
    def column(name: str) -> tuple[float | None, ...]:
        found = ((number(run.results, name, "median"), number(run.results, name)) for run in runs)
        return tuple(whole if whole is not None else simulated for whole, simulated in found)

    compute, wait = column("seconds_compute"), column("seconds_wait")
    if known(compute):
        parts = (Series("compute", compute, "blue"), Series("wait", wait, "orange"))
        marks = (Series("predicted", column("predicted_seconds_per_step"), "red"),)
        names = tuple(text(run.name) for run in runs)
        yield Figure("Time of a step", Bars("run", names, SECONDS, parts, marks if known(marks[0].values) else ()))


def _settings(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """A row for every key whose values differ between the runs whose settings are known."""
    flat = [_flat(run.settings) for run in runs]
    for key in dict.fromkeys(key for each in flat for key in each):
        values = tuple(each.get(key, "-") for each in flat)
        if len(set(values)) > 1:
            yield (text(key), *values)


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{table}.{key}": text(str(value))
        for table, values in settings.items()
        if isinstance(values, Mapping)
        for key, value in values.items()
    }
