"""Pictures: the curve of a sweep, and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import make_folder, writing
from taihu.simulation.figures.figure import Figure, Panel, Series

_PARTS = ("seconds_per_step", "seconds_compute", "seconds_wait")
_IN_A_ROW: Final = 4
_PANEL_INCHES: Final = (4.6, 3.6)
_DOTS_PER_INCH: Final = 90
_ROOM_FOR_LEGEND: Final = 1.35


def draw(path: Path, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the seconds of a step and its parts, and the speed-up beside its ideal, over `key` of the rows.

    Raises:
        ConfigError: matplotlib is not installed, or knows no such kind of file.
    """
    plt = _pyplot("--out")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    values = [row[key] for row in rows]
    for part in _PARTS:
        left.plot(values, [row[part] for row in rows], marker="o", label=part.replace("_", " "))
    right.plot(values, [row["speed_up"] for row in rows], marker="o", label="speed-up")
    right.plot(values, [row["nodes"] for row in rows], linestyle=":", label="ideal")
    for axes, label in ((left, "seconds"), (right, "times one worker")):
        axes.set(xlabel=key, ylabel=label, xscale="log", yscale="log")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
    try:
        with writing(path):
            figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"--out {path}: {str(error).splitlines()[0]}") from None
    finally:
        plt.close(figure)


def draw_figures(folder: Path, figures: Mapping[str, Figure]) -> None:
    """Draw each as NAME.png and NAME.svg in the folder, which is made; the same bytes every time.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    plt = _pyplot("--out")
    make_folder(folder)
    # Letters stay text, which makes files a tenth as large; ids follow from the salt and not from chance.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "taihu"}):
        for name, figure in figures.items():
            drawn = _drawn(plt, figure)
            drawn.savefig(folder / f"{name}.png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
            drawn.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
            plt.close(drawn)


def _pyplot(option: str) -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - it comes with an extra
    except ImportError:
        raise ConfigError(f"{option}: needs matplotlib; pip install 'taihu[pictures]'") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    return plt


def _drawn(plt: Any, figure: Figure) -> Any:
    columns = min(_IN_A_ROW, len(figure.panels))
    lines = -(-len(figure.panels) // columns)
    size = _PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * lines
    drawn, grid = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    places = iter(grid.flat)
    for panel, axes in zip(figure.panels, places, strict=False):
        _draw_panel(axes, panel)
    for axes in places:
        axes.set_axis_off()
    return drawn


def _draw_panel(axes: Any, panel: Panel) -> None:
    floors: dict[float | str, float] = {}
    ranges = 0
    for series in panel.series:
        if series.kind == "bars":
            bottoms = [floors.get(x, 0.0) for x in series.x]
            axes.bar(list(series.x), list(series.y), bottom=bottoms, label=series.name)
            floors.update({x: low + y for x, low, y in zip(series.x, bottoms, series.y, strict=True)})
        elif series.kind == "range":
            ranges += 1
            _draw_range(axes, series, f"C{9 - ranges}")
        else:
            _draw_values(axes, series)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    for axis in panel.log:
        _make_logarithmic(axes, axis)
    if "x" in panel.log:
        axes.set_xticks(sorted({x for series in panel.series for x in series.x}))
        axes.tick_params(axis="x", rotation=45)
    if floors:
        axes.tick_params(axis="x", rotation=60)
        axes.set_ylim(top=_ROOM_FOR_LEGEND * max(floors.values()))
    else:
        axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="x-small")


def _make_logarithmic(axes: Any, axis: str) -> None:
    """Numbers on such an axis are written as they are, not as powers."""
    axes.set(**{f"{axis}scale": "log"})
    of_axis = getattr(axes, f"{axis}axis")
    of_axis.set_major_formatter("{x:g}")
    of_axis.set_minor_formatter("")


def _draw_range(axes: Any, series: Series, colour: str) -> None:
    least, most = series.y
    if least == most:
        axes.axhline(least, color=colour, linestyle=":", label=series.name)
    else:
        axes.axhspan(least, most, color=colour, alpha=0.2, label=series.name)


def _draw_values(axes: Any, series: Series) -> None:
    style = {"line": "-", "dashes": "--", "points": "none"}[series.kind]
    marker = "x" if series.kind == "points" else "."
    # Dashes belong to the line before them.
    colour = axes.lines[-1].get_color() if series.kind == "dashes" and axes.lines else None
    axes.plot(list(series.x), list(series.y), linestyle=style, marker=marker, color=colour, label=series.name)
