"""A sweep: a job simulated with several numbers of nodes or servers."""

from __future__ import annotations

from collections.abc import Mapping

from taihu.report.charts import Bars, Figure, Lines, Section, Series
from taihu.report.run import Run
from taihu.report.values import BYTES, NUMBER, SECONDS, Unit, items, known, number

_PROCESSES = (("worker", ("blue", "teal")), ("server", ("orange", "gold")))


class _Rows:
    """The rows of a sweep by what was swept."""

    def __init__(self, run: Run) -> None:
        rows = [row for row in items(run.results, "rows") if isinstance(row, Mapping)]
        nodes, servers = ({number(row, key) for row in rows} for key in ("nodes", "servers"))
        self.key = "servers" if len(nodes) == 1 and len(servers) > 1 else "nodes"
        there = [(number(row, self.key), row) for row in rows]
        found = {place: row for place, row in there if place is not None and place > 0}
        self.places = tuple(sorted(found))
        self._rows = [found[place] for place in self.places]

    def column(self, *path: str) -> tuple[float | None, ...]:
        """A value of each row."""
        return tuple(number(row, *path) for row in self._rows)

    def lines(self, unit: Unit, *lines: Series, is_log: bool = False) -> Lines:
        """A chart over the rows, which stand at even distances."""
        names = tuple(f"{place:,.0f}" for place in self.places)
        return Lines(self.key, self.places, names, unit, lines, is_log=is_log, is_even=True)


def sweep(run: Run) -> Section | None:
    """All figures of a sweep; none without rows."""
    rows = _Rows(run)
    if not rows.places:
        return None
    parts = (
        Series("compute", rows.column("seconds_compute"), "blue"),
        Series("wait", rows.column("seconds_wait"), "orange"),
    )
    names = tuple(f"{place:,.0f}" for place in rows.places)
    figures = [Figure("Time of a step", Bars(rows.key, names, SECONDS, parts), "Compute and wait make up the step.")]
    speed = Series("speed-up over one worker", rows.column("speed_up"), "blue", dots=True)
    if known(speed.values):
        ideal = [Series("as many times as nodes", rows.places, "grey", dashed=True)] if rows.key == "nodes" else []
        is_log = min(known(speed.values)) > 0
        note = "Both axes are logarithmic." if is_log and rows.key == "nodes" else ""
        figures.append(Figure("Speed-up", rows.lines(NUMBER, speed, *ideal, is_log=is_log), note))
    sent = [
        Series(f"{role}: {way}", rows.column("bytes_per_process", role, way), colours[place], bool(place), dots=True)
        for role, colours in _PROCESSES
        for place, way in enumerate(("sent", "received"))
    ]
    held = [
        Series(role, rows.column("memory_per_process", role), colours[0], dots=True) for role, colours in _PROCESSES
    ]
    for title, series, note in (
        ("Bytes of a step", sent, "Of the process of each kind that has the most, between hosts."),
        ("Memory, planned", held, "Of the process of each kind that has the most, without activations."),
    ):
        there = [each for each in series if known(each.values)]
        if there:
            figures.append(Figure(title, rows.lines(BYTES, *there), note))
    return Section("sweep", f"By {rows.key}", figures)
