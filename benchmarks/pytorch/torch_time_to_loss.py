r"""Time to a loss over shaped links: `python -m benchmarks torch_time_to_loss --help`.

Three workers with a host each (network namespaces with shaped links, as root) train the same task, one way after the
other: by DistributedDataParallel over Gloo, plain and with the hooks fp16 and PowerSGD, and by taihu's optimizer. The
loss to come to is the best that plain DDP has had after 80 % of its steps, at the best of its rates. How many steps a
way takes to it does not depend on links: that is measured once over fast ones, at two rates, of which the better
counts, and by DDP and its hooks at a lower one, too; the fp16 hook has the steps of DDP. How long a step takes is
measured over each kind of link. Their product is the time, and pictures have losses over it. Rows that the file of
--json holds are not measured again. Needs Debian's dataset-fashion-mnist.

Examples:
  python -m benchmarks torch_time_to_loss --json benchmarks/results/torch_time_to_loss.json --learning
  python -m benchmarks torch_time_to_loss --json benchmarks/results/torch_time_to_loss.json --docs docs/torch.md \
      --draw docs/torch_time_to_loss.png
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import matplotlib as mpl

from benchmarks.base.network import ShapedNetwork, run_torch_workers
from benchmarks.base.rows import load_rows, publish, save_picture, save_rows
from benchmarks.learning.steps_to_loss import DENSE, FAST, FP16, WINDOW, goal_of, learning, steps_to
from benchmarks.pytorch.torch_to_loss import ALONE, TASKS, WAYS

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["Cell", "cells", "draw", "measure", "table"]

_PAGE: Final = "measured by benchmarks.pytorch.torch_time_to_loss"
_WORKERS: Final = 3
_RATES: Final = (1e9, 100e6, 10e6)
_FACTORS: Final = (0.5, 1.0, 2.0)
_TAIHU_PLANS: Final = 28
"""Steps by which taihu's optimizer has measured, and goes by its plan."""
_HOOK_BEGINS: Final = 3
"""Steps behind which PowerSGD's hook compresses."""
_MEASURED_S: Final = 12.0
_MOST: Final = 16
_LEAST: Final = 2


@dataclass(frozen=True)
class Cell:
    """One run; its curve counts over fast links, and its times over others."""

    task: str
    way: str
    factor: float
    rate_bits: float
    steps: int

    @property
    def is_curve(self) -> bool:
        """Whether it is run for its losses."""
        return self.rate_bits == FAST


def cells(tasks: Sequence[str], *, is_learning: bool) -> Iterator[Cell]:
    """Runs to the loss of each way but fp16's, or runs that are timed of all ways."""
    for task in tasks:
        if is_learning:
            for factor in _FACTORS:
                for way in WAYS:
                    # What is compared with others' best need not be at its own.
                    if way != FP16 and (factor >= 1.0 or way.startswith(DENSE)):
                        yield Cell(task, way, factor, FAST, TASKS[task].steps)
            continue
        elements = sum(each.numel() for each in TASKS[task].model().parameters())
        for rate in _RATES:
            for way in (ALONE, *WAYS):
                yield Cell(task, way, 1.0, rate, _warm(way) + _timed(way, elements, rate))


def _warm(way: str) -> int:
    return _TAIHU_PLANS if way.startswith("taihu") else _HOOK_BEGINS if "PowerSGD" in way else 1


def _timed(way: str, elements: int, rate_bits: float) -> int:
    """Fewer steps where a dense exchange, or half of one, takes long."""
    halves = {DENSE: 2, FP16: 1}.get(way, 0)
    expected_s = 0.1 + halves * 16 * 2 * (_WORKERS - 1) / _WORKERS * elements / rate_bits
    return max(_LEAST, min(_MOST, round(_MEASURED_S / expected_s)))


def measure(cell: Cell) -> dict[str, Any]:
    """The row of a cell: losses and seconds by step, of all ranks and of rank 0."""
    way = WAYS.get(cell.way)
    has_server = way is not None and way.has_server
    with tempfile.TemporaryDirectory() as name, ShapedNetwork(_WORKERS + has_server, cell.rate_bits) as network:
        result = Path(name) / "row.json"
        command = [sys.executable, "-m", "benchmarks.pytorch.torch_to_loss", "--task", cell.task, "--way", cell.way]
        command += ["--factor", str(cell.factor), "--steps", str(cell.steps), "--json", str(result)]
        told = {} if way is None else way.environment
        run_torch_workers(network, command, told, has_server=has_server)
        row = json.loads(result.read_text())
    means = (fmean(row["losses"][start : start + WINDOW]) for start in range(0, cell.steps, WINDOW))
    row["losses"], row["seconds"] = [round(each, 5) for each in means], [round(each, 5) for each in row["seconds"]]
    return {**asdict(cell), **row, "load": os.getloadavg()[0]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown: steps to the loss, times of a step, and their products."""
    lines = [
        "| task, loss | links | way | rate | steps | step, ms | seconds to it | DDP's to it | best hook's to it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    curves = learning(rows)
    for task in dict.fromkeys(row["task"] for row in curves):
        goal = goal_of(curves, task)
        steps = {way: steps_to(curves, task, way, goal) for way in WAYS}
        of_task = [row for row in rows if row["task"] == task and row["rate_bits"] != FAST]
        for rate in dict.fromkeys(row["rate_bits"] for row in of_task):
            step_s = _step_seconds(of_task, rate)
            begin = f"| {task}, {goal:.3f} | {rate / 1e6:g} Mbit/s |"
            lines += [f"{begin} {' | '.join(columns)} |" for columns in _columns(step_s, steps)]
    return "\n".join(lines)


def _step_seconds(rows: Sequence[dict[str, Any]], rate_bits: float) -> dict[str, float]:
    """The median seconds of a step by way, of rows of one task."""
    of_rate = [row for row in rows if row["rate_bits"] == rate_bits]
    return {row["way"]: median(row["seconds"][_warm(row["way"]) :]) for row in of_rate}


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Losses over seconds of training, a row of panels for each task, and one panel for each kind of link."""
    curves = learning(rows)
    tasks = list(dict.fromkeys(row["task"] for row in curves))
    size = 4.2 * len(_RATES), 3.0 * len(tasks)
    figure, panels = plt.subplots(len(tasks), len(_RATES), figsize=size, layout="constrained", squeeze=False)
    for task, of_task in zip(tasks, panels, strict=True):
        goal = goal_of(curves, task)
        for rate, axes in zip(_RATES, of_task, strict=True):
            step_s = _step_seconds([row for row in rows if row["task"] == task], rate)
            for way, each_s in step_s.items():
                taken = steps_to(curves, task, way, goal)
                losses = _curve(curves, task, way, 1.0 if taken is None else taken[1])
                if losses:
                    seconds = [each_s * WINDOW * (place + 0.5) for place in range(len(losses))]
                    axes.plot(seconds, losses, linewidth=1.2, label=way)
            axes.axhline(goal, color="gray", linewidth=0.8)
            axes.set(title=f"{task}, {rate / 1e6:g} Mbit/s", xlabel="seconds", ylabel="training loss", xscale="log")
            axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize=6)
    save_picture(figure, picture)


def _curve(rows: Sequence[dict[str, Any]], task: str, way: str, factor: float) -> list[float]:
    way = DENSE if way == FP16 else way
    found = [row["losses"] for row in rows if (row["task"], row["way"], row["factor"]) == (task, way, factor)]
    return list(found[0]) if found else []


def _columns(
    step_s: Mapping[str, float], steps: Mapping[str, tuple[float, float] | None]
) -> Iterator[tuple[str, ...]]:
    """Those of each way of a task and rate, by the seconds of a step, and the steps to the loss with their factor."""
    seconds = {way: taken[0] * step_s[way] for way, taken in steps.items() if taken is not None and way in step_s}
    best_hook = min((each for way, each in seconds.items() if way.startswith(f"{DENSE},")), default=None)
    for way, each_s in step_s.items():
        ms, taken = f"{1e3 * each_s:.0f}", steps.get(way)
        if taken is None:
            yield way, "", "" if way == ALONE else "not there", ms, "", "", ""
            continue
        beside = seconds.get(DENSE), best_hook
        ratios = ("" if other is None else f"{other / seconds[way]:.2f}" for other in beside)
        yield way, f"x {taken[1]:g}", f"{taken[0]:.0f}", ms, f"{seconds[way]:.1f}", *ratios


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), metavar="A,B")
    parser.add_argument("--ways", default="", metavar="A;B", help="these alone, with semicolons between them")
    parser.add_argument("--learning", action="store_true", help="runs to the loss alone, which may share the machine")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="losses over seconds, as PNG and as SVG")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    known = {Cell(*(row[name] for name in Cell.__dataclass_fields__)) for row in rows}
    tasks, ways = options.tasks.split(","), options.ways.split(";") if options.ways else [ALONE, *WAYS]
    wanted = list(cells(tasks, is_learning=True))
    wanted += [] if options.learning else cells(tasks, is_learning=False)
    for cell in wanted:
        if cell.way in ways and cell not in known:
            rows.append(measure(cell))
            save_rows(options.json, rows)
            ms, loss = 1e3 * median(rows[-1]["seconds"][_warm(cell.way) :]), rows[-1]["losses"][-1]
            print(
                f"{cell.task}, {cell.rate_bits / 1e6:g} Mbit/s, {cell.way} x {cell.factor:g}: "
                f"{ms:.0f} ms a step, loss {loss:.3f}",
                flush=True,
            )
    if options.draw is not None:
        draw(rows, options.draw)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
