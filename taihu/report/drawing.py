"""Charts as HTML with inline SVG, and the tables of their values.

An SVG has no text: it stretches with the page, while the texts beside it keep their size. Whatever comes from a file
is escaped here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from taihu.report.axes import Axis, log_axis, usual_most, value_axis
from taihu.report.charts import Bars, Chart, Figure, Lines, Series, Span, Table, Timeline, Track
from taihu.report.values import NUMBER, SECONDS, known

_NO_BREAK: Final = "\xa0"
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_WIDTH: Final = 1000.0
_HEIGHT: Final = 300.0
_ROW: Final = 22
_LEAST_SPAN: Final = 1.2
_OF_TIMELINES: Final = (
    "A row for each track of each process, a bar for all that went on; the table below has the values."
)
_DOTS_UP_TO: Final = 40
_MOST_NAMES: Final = 10


def html(text: str) -> str:
    """A text as it stands in HTML, within quotes too; what does not print is replaced."""
    shown = "".join(each if each.isprintable() or each == _NO_BREAK else _REPLACEMENT for each in text)
    return escape(shown)


def draw_figure(figure: Figure, key: str) -> str:
    """A figure with its title, note, chart, legend and values; `key` begins all of its ids."""
    shown = figure.shown
    title = f'<h3 id="{key}-title">{html(figure.title)}</h3>'
    if isinstance(shown, Table):
        note = f'<p class="note">{html(figure.note)}</p>' if figure.note else ""
        return f'<figure class="figure" id="{key}">{title}{note}{table_html(shown, figure.title)}</figure>'
    body, more = _draw(shown, key, figure.title)
    said = " ".join(part for part in (figure.note, more) if part)
    note = f'<p class="note">{html(said)}</p>' if said else ""
    table = table_html(_values_of(shown), f"Values: {figure.title}", f"{key}-values")
    values = f"<details><summary>Values</summary>{table}</details>"
    return f'<figure class="figure" id="{key}">{title}{note}{_legend(shown)}{body}{values}</figure>'


def _draw(chart: Chart, key: str, title: str) -> tuple[str, str]:
    """The chart, and a word on what it does not show."""
    if isinstance(chart, Lines):
        return _lines(chart, key, title)
    return (_bars(chart, key, title) if isinstance(chart, Bars) else _timeline(chart, key, title)), ""


def table_html(table: Table, caption: str, key: str = "") -> str:
    """A table that scrolls by itself where it is too wide."""
    named = f' id="{key}"' if key else ""
    head = "".join(_cell("th", text, place >= table.left, ' scope="col"') for place, text in enumerate(table.columns))
    body = "".join(
        "<tr>" + "".join(_cell("td", text, place >= table.left) for place, text in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    label = html(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table{named}>'
        f'<caption class="unseen">{label}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(tag: str, text: str, is_number: bool, more: str = "") -> str:
    kind = ' class="n"' if is_number else ""
    return f"<{tag}{more}{kind}>{html(text)}</{tag}>"


def _legend(chart: Chart) -> str:
    """The colours of a chart with what they stand for."""
    if isinstance(chart, Timeline):
        named = {span.name: (span.colour, "box") for track in chart.tracks for span in track.spans}
    else:
        named = {each.name: (each.colour, _form(chart, each)) for each in chart.series}
    if len(named) < 2:
        return ""
    swatches = (
        f'<li><span class="swatch {form} {colour}"></span>{html(name)}</li>' for name, (colour, form) in named.items()
    )
    return f'<ul class="legend">{"".join(swatches)}</ul>'


def _form(chart: Lines | Bars, series: Series) -> str:
    if isinstance(chart, Bars):
        return "box" if series in chart.parts else "stroke"
    if series in chart.areas:
        return "box"
    return "dash" if series.dashed else "stroke"


def _values_of(chart: Chart) -> Table:
    """The values behind a chart, as texts."""
    if isinstance(chart, Timeline):
        spans = [(track, span) for track in chart.tracks for span in track.spans]
        rows = [(*_place(*each), *map(SECONDS.text, _times(each[1]))) for each in spans]
        return Table(("process", "track", "what", "of", "starts", "takes"), tuple(rows), 4)
    first = chart.over if isinstance(chart, Lines) else chart.what
    columns = (first, *(each.name for each in chart.series))
    told = [tuple(map(chart.unit.text, each.values)) for each in chart.series]
    return Table(columns, tuple(zip(chart.names, *told, strict=True)))


def _place(track: Track, span: Span) -> tuple[str, ...]:
    return track.process, track.name, span.name, span.about


def _times(span: Span) -> tuple[float, float]:
    """Its start, and how long it takes."""
    return span.start, span.stop - span.start


def _svg(key: str, title: str, about: str, height: float, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{key}-name {key}-about"><title id="{key}-name">{html(title)}</title>'
        f'<desc id="{key}-about">{html(about)}</desc>{body}</svg>'
    )


def _ticks(axis: Axis, side: str) -> str:
    """The texts of an axis, placed in hundredths of its length."""
    return "".join(
        f'<span style="{side}:{100 * axis.share(value):.2f}%"{_at_end(axis.share(value))}>{html(text)}</span>'
        for value, text in axis.ticks
    )


def _at_end(share: float) -> str:
    return ' class="first"' if share < 0.04 else ' class="last"' if share > 0.96 else ""


def _lines(chart: Lines, key: str, title: str) -> tuple[str, str]:
    """The chart, and what it does not show."""
    across, up, beyond = _axes(chart)
    places = tuple(map(float, range(len(chart.places)))) if chart.is_even else chart.places
    drawn = [f'<path class="grid" d="{_level_lines(up)}"/>']
    below = [0.0] * len(places)
    for series in chart.areas:
        above = [low + (value or 0.0) for low, value in zip(below, series.values, strict=True)]
        drawn.append(f'<path class="fill {series.colour}" d="{_area(places, below, above, across, up)}"/>')
        below = above
    for series in chart.lines:
        drawn += _line(places, series, across, up)
    about = f"{', '.join(each.name for each in chart.series)} over {chart.over}; the table below has the values."
    shares = ",".join(f"{across.share(place):.4f}" for place in places)
    body = (
        f'<div class="chart lines" data-values="{key}-values" data-places="{shares}" tabindex="0" role="group" '
        f'aria-label="{html(title)}: arrow keys tell the values">'
        f'<div class="up" aria-hidden="true">{_ticks(up, "bottom")}</div>'
        f'<div class="area">{_svg(key, title, about, _HEIGHT, "".join(drawn))}<div class="cursor"></div></div>'
        f'<div class="across" aria-hidden="true">{_ticks(across, "left")}</div>'
        f'<div class="over" aria-hidden="true">{html(chart.over)}</div></div>'
    )
    return body, beyond


def _axes(chart: Lines) -> tuple[Axis, Axis, str]:
    """Both axes, and a word on values beyond the upper one."""
    across = _across(chart)
    sums = [sum(known([each.values[place] for each in chart.areas])) for place in range(len(chart.places))]
    values = [*(sums if chart.areas else ()), *(value for each in chart.lines for value in known(each.values))]
    if chart.is_log:
        positive = [value for value in values if value > 0]
        return across, log_axis(min(positive), max(positive), chart.unit), ""
    most = usual_most(values)
    low = 0.0 if chart.from_zero and min(values) >= 0 else min(values)
    up = value_axis(low, most, chart.unit)
    over = sum(value > up.high * (1 + 1e-9) for value in values)
    if not over:
        return across, up, ""
    return across, up, f"{over} of {len(values)} values lie above the chart, up to {chart.unit.text(max(values))}."


def _across(chart: Lines) -> Axis:
    """The axis of places."""
    if chart.is_even:
        every = -(-len(chart.places) // _MOST_NAMES)
        ticks = tuple((float(place), name) for place, name in enumerate(chart.names))[::every]
        return Axis(0.0, max(1.0, len(chart.places) - 1.0), ticks)
    first, last = chart.places[0], chart.places[-1]
    if first == last:  # a point alone stands in the middle
        room = 0.5 * abs(first) or 1.0
        first, last = first - room, last + room
    axis = value_axis(first, last, NUMBER, whole=all(place == int(place) for place in chart.places))
    return Axis(first, last, tuple(tick for tick in axis.ticks if first <= tick[0] <= last))


def _level_lines(up: Axis) -> str:
    return "".join(f"M0 {_HEIGHT * (1 - up.share(value)):.1f}H{_WIDTH:g}" for value, _ in up.ticks)


def _area(places: Sequence[float], low: Sequence[float], high: Sequence[float], across: Axis, up: Axis) -> str:
    """The outline of what lies between two lines."""
    forth = [_point(x, y, across, up) for x, y in zip(places, high, strict=True)]
    back = [_point(x, y, across, up) for x, y in zip(reversed(places), reversed(low), strict=True)]
    if len(places) == 1:  # a point has no width: it is drawn over all of it
        (_, y), (_, y0) = (each.split(" ") for each in (*forth, *back))
        return f"M0 {y}H{_WIDTH:g}V{y0}H0Z"
    return f"M{'L'.join((*forth, *back))}Z"


def _point(x: float, y: float, across: Axis, up: Axis) -> str:
    # What lies beyond is cut off by the viewport; numbers stay small.
    return f"{_WIDTH * across.share(x):.1f} {_HEIGHT * (1 - min(max(up.share(y), -1.0), 3.0)):.1f}"


def _line(places: Sequence[float], series: Series, across: Axis, up: Axis) -> Iterator[str]:
    """The line of a series, and its points where there are few or they stand alone."""
    runs: list[list[str]] = [[]]
    for place, value in zip(places, series.values, strict=True):
        if value is not None and not (up.is_log and value <= 0):
            runs[-1].append(_point(place, value, across, up))
        elif runs[-1] and not series.joined:
            runs.append([])
    dashed = " dashed" if series.dashed else ""
    path = "".join(f"M{'L'.join(run)}" for run in runs if len(run) > 1)
    if path:
        yield f'<path class="line {series.colour}{dashed}" d="{path}"/>'
    points = [point for run in runs for point in run if series.dots or len(run) == 1]
    if points and len(points) <= _DOTS_UP_TO:
        # A line of no length with round ends is a dot, and stays round when the SVG stretches.
        yield f'<path class="dots {series.colour}" d="{"".join(f"M{point}h0" for point in points)}"/>'


def _bars(chart: Bars, key: str, title: str) -> str:
    sums = [sum(known([each.values[row] for each in chart.parts])) for row in range(len(chart.names))]
    marked = [value for each in chart.marks for value in known(each.values)]
    across = value_axis(0.0, max((*sums, *marked)), chart.unit)
    height = _ROW * len(chart.names)
    drawn = [_upright_lines(across, height)]
    for row, name in enumerate(chart.names):
        drawn += _bar(chart, row, name, across)
    about = f"For each {chart.what}: {', '.join(each.name for each in chart.series)}; the table below has the values."
    labels = "".join(f'<span title="{html(name)}">{html(name)}</span>' for name in chart.names)
    totals = "".join(f"<span>{html(chart.unit.text(total))}</span>" for total in sums)
    return (
        f'<div class="chart bars"><div class="names" aria-hidden="true">{labels}</div>'
        f'<div class="area" style="height:{height}px">{_svg(key, title, about, height, "".join(drawn))}</div>'
        f'<div class="totals" aria-hidden="true">{totals}</div>'
        f'<div class="across" aria-hidden="true">{_ticks(across, "left")}</div></div>'
    )


def _upright_lines(across: Axis, height: float) -> str:
    path = "".join(f"M{_WIDTH * across.share(at):.1f} 0V{height}" for at, _ in across.ticks)
    return f'<path class="grid" d="{path}"/>'


def _bar(chart: Bars, row: int, name: str, across: Axis) -> Iterator[str]:
    start = 0.0
    for series in chart.parts:
        value = series.values[row]
        if not value or value < 0:
            continue
        left, right = (_WIDTH * across.share(at) for at in (start, start + value))
        tip = f"{name}: {series.name} {chart.unit.text(value)}"
        yield _rect(left, row, right - left, series.colour, tip)
        start += value
    for series in chart.marks:
        value = series.values[row]
        if value is not None:
            tip = f"{name}: {series.name} {chart.unit.text(value)}"
            at = _WIDTH * across.share(value)
            yield (
                f'<path class="line {series.colour}" d="M{at:.1f} {_ROW * row + 1}v{_ROW - 2}">'
                f"<title>{html(tip)}</title></path>"
            )


def _rect(left: float, row: int, width: float, colour: str, tip: str) -> str:
    place = f'x="{left:.2f}" y="{_ROW * row + 3}" width="{max(width, 0.0):.2f}" height="{_ROW - 6}"'
    return f'<rect class="{colour}" {place}><title>{html(tip)}</title></rect>'


def _timeline(chart: Timeline, key: str, title: str) -> str:
    across = value_axis(0.0, chart.seconds, SECONDS)
    across = Axis(0.0, chart.seconds, tuple(tick for tick in across.ticks if tick[0] <= chart.seconds))
    height = _ROW * len(chart.tracks)
    drawn = [_upright_lines(across, height)]
    labels = []
    before = ""
    for row, track in enumerate(chart.tracks):
        if row and track.process != before:
            drawn.append(f'<path class="edge" d="M0 {_ROW * row}H{_WIDTH:g}"/>')
        process = "" if track.process == before else f"<b>{html(track.process)}</b> "
        name = html(f"{track.process} {track.name}")
        labels.append(f'<span title="{name}">{process}{html(track.name)}</span>')
        drawn += (_span(span, row, track, across) for span in track.spans)
        before = track.process
    return (
        f'<div class="chart bars timeline"><div class="names" aria-hidden="true">{"".join(labels)}</div>'
        f'<div class="area" style="height:{height}px">{_svg(key, title, _OF_TIMELINES, height, "".join(drawn))}</div>'
        f'<div class="across" aria-hidden="true">{_ticks(across, "left")}</div></div>'
    )


def _span(span: Span, row: int, track: Track, across: Axis) -> str:
    left, right = (_WIDTH * min(max(across.share(at), 0.0), 1.0) for at in (span.start, span.stop))
    told = " ".join(part for part in (span.name, span.about) if part)
    lasting, start = SECONDS.text(span.stop - span.start), SECONDS.text(span.start)
    tip = f"{track.process}, {track.name}: {told}, {lasting} from {start}"
    width = max(right - left, _LEAST_SPAN)
    return _rect(min(left, _WIDTH - width), row, width, span.colour, tip)
