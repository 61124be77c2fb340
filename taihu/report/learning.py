"""Progress in learning: losses, scores, the learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from taihu.report.charts import Colour, Figure, Lines, Missing, Section, Series
from taihu.report.run import Run, StepTable
from taihu.report.values import NUMBER, SHARE, Bin, Unit, binned, bins_of, items, known, number

MOST_BINS: Final = 150
_FAR: Final = 100.0
_SHARES: Final = ("test_accuracy", "test_f1", "test_auc")
_COLOURS: Final[tuple[Colour, ...]] = ("blue", "orange", "teal", "purple", "gold", "red")


def learning(run: Run) -> Section | Missing:
    """Losses and scores over the steps."""
    figures = [*_losses(run), *_scores(run), *_learning_rate(run)]
    if figures:
        return Section("learning", "Loss and accuracy", figures)
    if run.is_simulated:
        return Missing("loss and accuracy", "taihu train JOB.toml trains for real")
    if run.script:
        return Missing("loss and accuracy", f"only {run.script} knows them: it has its own loop")
    return Missing("loss and accuracy", "give the run's folder, not its results alone")


def tests_of(run: Run) -> StepTable:
    """The tests of a run, of its table or else of its results."""
    if len(run.tests):
        return run.tests
    rows = items(run.results, "evaluations")
    columns = {name: tuple(number(row, name) for row in rows) for name in ("step", "train_loss", "test_loss")}
    names = dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row.get("test_metrics") or {})
    scores = {f"test_{name}": tuple(number(row, "test_metrics", name) for row in rows) for name in names}
    return StepTable({**columns, **scores})


def step_names(steps: Sequence[float | None], bins: Sequence[Bin]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """The middle of each bin of steps, and its name: `7`, or `7 to 9`."""
    edges = [(steps[each.start] or 0.0, steps[each.stop - 1] or 0.0) for each in bins]
    names = tuple(f"{first:.0f}" if first == last else f"{first:.0f} to {last:.0f}" for first, last in edges)
    return tuple((first + last) / 2 for first, last in edges), names


def over_steps(table: StepTable, columns: Sequence[Series], unit: Unit, *, areas: int = 0) -> Lines:
    """A chart over the steps of a table, of columns as long as it, of which the first `areas` lie upon each other."""
    bins = bins_of(len(table), MOST_BINS)
    places, names = step_names(table["step"], bins)
    series = [replace(each, values=binned(each.values, bins)) for each in columns]
    return Lines("step", places, names, unit, lines=tuple(series[areas:]), areas=tuple(series[:areas]))


def _losses(run: Run) -> Iterator[Figure]:
    tests = tests_of(run)
    own = [("worker 0, each step", run.steps, "worker_0_loss", "grey")]
    tested = [
        ("training, mean since the last test", tests, "train_loss", "blue"),
        ("test", tests, "test_loss", "orange"),
    ]
    chart = merged([each for each in (*own, *tested) if each[1].has(each[2])], NUMBER)
    if chart is None:
        return
    yield loss_figure("Loss", chart)


def loss_figure(title: str, chart: Lines) -> Figure:
    """A figure of losses, whose axis is logarithmic where they differ by much."""
    values = [value for series in chart.series for value in known(series.values)]
    if min(values) <= 0 or max(values) <= _FAR * min(values):
        return Figure(title, chart)
    return Figure(title, replace(chart, is_log=True), "The axis of losses is logarithmic.")


def _scores(run: Run) -> Iterator[Figure]:
    """A figure for what is a share, and one for every other score."""
    tests = tests_of(run)
    names = [name for name in tests.columns if name.startswith("test_") and name != "test_loss" and tests.has(name)]
    for place, name in enumerate(names):
        is_share = name in _SHARES
        title = name.removeprefix("test_").replace("_", " ").capitalize()
        chart = merged([("test", tests, name, _COLOURS[place % len(_COLOURS)])], SHARE if is_share else NUMBER)
        if chart is not None:
            yield Figure(f"{title} on the test set", replace(chart, from_zero=False))


def _learning_rate(run: Run) -> Iterator[Figure]:
    rates = run.steps["learning_rate"]
    if len(set(known(rates))) > 1:
        chart = over_steps(run.steps, [Series("learning rate", rates, "teal")], NUMBER)
        yield Figure("Learning rate", chart)


def merged(columns: Sequence[tuple[str, StepTable, str, Colour]], unit: Unit) -> Lines | None:
    """A chart of columns of several tables, each with its own steps; None where there is no value."""
    series: list[tuple[str, Colour, dict[float, tuple[str, float | None]]]] = []
    for name, table, column, colour in columns:
        bins = bins_of(len(table), MOST_BINS)
        places, names = step_names(table["step"], bins)
        values = binned(table[column], bins)
        series.append((name, colour, dict(zip(places, zip(names, values, strict=True), strict=True))))
    names_at = {place: name for _, _, found in reversed(series) for place, (name, _) in found.items()}
    places = tuple(sorted(names_at))
    lines = tuple(
        Series(name, tuple(found.get(place, ("", None))[1] for place in places), colour, joined=True, dots=True)
        for name, colour, found in series
    )
    if not any(known(line.values) for line in lines):
        return None
    return Lines("step", places, tuple(names_at[place] for place in places), unit, lines)
