r"""Time to a loss over shaped links: `python -m benchmarks torch_time_to_loss --help`.

Three workers with a host each (network namespaces with shaped links, as root) train the same task, one way after the
other: by DistributedDataParallel over Gloo, plain and with the hooks fp16 and PowerSGD, and by taihu's optimizer. The
loss to come to is the best that plain DDP has had after 80 % of its steps, at the best of its rates. How many steps a
way takes to it does not depend on links: that is measured once over fast ones, at two rates, of which the better
counts, and by DDP and its hooks at a lower one, too; the fp16 hook has the steps of DDP. From other seeds than the
first, ways but DDP learn at their best rate of that. How long a step takes is
measured over each kind of link. Their product is the time, and pictures have losses over it. Rows that the file of
--json holds are not measured again. Needs Debian's dataset-fashion-mnist.

Examples:
  python -m benchmarks torch_time_to_loss --json benchmarks/results/torch_time_to_loss.json --learning --seeds 3
  python -m benchmarks torch_time_to_loss --json benchmarks/results/torch_time_to_loss.json --docs docs/torch.md \
      --draw docs/torch_time_to_loss.png
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import matplotlib as mpl

from benchmarks.base.network import ShapedNetwork, run_torch_workers
from benchmarks.base.rows import load_rows, publish, save_picture, save_rows
from benchmarks.learning.steps_to_loss import DENSE, FAST, FP16, WINDOW, best_factor, goal_of, learning, steps_to
from benchmarks.pytorch.torch_to_loss import ALONE, TASKS, WAYS

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["Cell", "curves_of", "draw", "measure", "table", "timed_cells"]

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

_Steps = Mapping[str, tuple[float, float] | None]
"""Steps to the loss, and the multiple of the rate, of each way that has run; None where it has not come there."""


@dataclass(frozen=True)
class Cell:
    """One run; its curve counts over fast links, and its times over others."""

    task: str
    way: str
    factor: float
    rate_bits: float
    steps: int
    seed: int = 0

    @property
    def is_curve(self) -> bool:
        """Whether it is run for its losses."""
        return self.rate_bits == FAST


def curves_of(tasks: Sequence[str], rows: Sequence[dict[str, Any]], seed: int) -> Iterator[Cell]:
    """Runs to the loss of each way but fp16's; those of another seed than the first follow its `rows`."""
    first = learning(rows)
    for task in tasks:
        for factor in _FACTORS:
            for way in WAYS:
                # What is compared with others' best need not be at its own.
                is_tried = way == DENSE or (factor >= 1.0 or way.startswith(DENSE))
                if seed and way not in {DENSE, FP16}:
                    is_tried = factor == best_factor(first, task, way)
                if way != FP16 and is_tried:
                    yield Cell(task, way, factor, FAST, TASKS[task].steps, seed)


def timed_cells(tasks: Sequence[str]) -> Iterator[Cell]:
    """Runs of all ways that are timed."""
    for task in tasks:
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
        command += ["--seed", str(cell.seed)]
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
    for task in dict.fromkeys(row["task"] for row in learning(rows)):
        seeds = sorted({row.get("seed", 0) for row in rows if row["task"] == task and row["rate_bits"] == FAST})
        curves = [learning(rows, seed) for seed in seeds]
        goals = [goal_of(each, task) for each in curves]
        steps = [_steps(each, task, goal) for each, goal in zip(curves, goals, strict=True)]
        of_task = [row for row in rows if row["task"] == task and row["rate_bits"] != FAST]
        for rate in dict.fromkeys(row["rate_bits"] for row in of_task):
            step_s = _step_seconds(of_task, rate)
            begin = f"| {task}, {fmean(goals):.3f} | {rate / 1e6:g} Mbit/s |"
            lines += [f"{begin} {' | '.join(columns)} |" for columns in _columns(step_s, steps)]
    return "\n".join(lines)


def _steps(curves: Sequence[dict[str, Any]], task: str, goal: float) -> _Steps:
    """The steps of each way that a seed has a run of; the fp16 hook's are those of DDP."""
    known = {row["way"] for row in curves if row["task"] == task}
    known |= {FP16} if DENSE in known else set()
    return {way: steps_to(curves, task, way, goal) for way in WAYS if way in known}


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


def _columns(step_s: Mapping[str, float], steps: Sequence[_Steps]) -> Iterator[tuple[str, ...]]:
    """Those of each way of a task and rate, by the seconds of a step, and the steps to the loss of each seed."""
    for way, each_s in step_s.items():
        ms, of_seeds = f"{1e3 * each_s:.0f}", [of_seed for of_seed in steps if way in of_seed]
        taken = [found for of_seed in of_seeds if (found := of_seed[way]) is not None]
        if not taken or len(taken) < len(of_seeds):
            yield way, "", "" if way == ALONE else "not there", ms, "", "", ""
            continue
        factors = ", ".join(f"{factor:g}" for factor in dict.fromkeys(factor for _, factor in taken))
        seconds = [count * each_s for count, _ in taken]
        hooks = [other for other in step_s if other.startswith(f"{DENSE},")]
        ratios = (_ratios(others, step_s, of_seeds, seconds) for others in ([DENSE], hooks))
        yield way, f"x {factors}", _spread([count for count, _ in taken], 0), ms, _spread(seconds, 1), *ratios


def _ratios(
    others: Sequence[str], step_s: Mapping[str, float], steps: Sequence[_Steps], own_s: Sequence[float]
) -> str:
    """The seconds of the best of `others` as multiples of the own ones, over the seeds; "" where none comes there."""
    found = []
    for of_seed, each_s in zip(steps, own_s, strict=True):
        reached = [(taken, step_s[way]) for way in others if (taken := of_seed.get(way)) is not None]
        if not reached:
            return ""
        found.append(min(taken[0] * seconds for taken, seconds in reached) / each_s)
    return _spread(found, 2)


def _spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the least and the most where there are several."""
    mean, *ends = (f"{each:.{digits}f}" for each in (fmean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({ends[0]} - {ends[1]})"


def _told(cell: Cell, row: Mapping[str, Any]) -> str:
    ms, loss = 1e3 * median(row["seconds"][_warm(cell.way) :]), row["losses"][-1]
    links = f"{cell.rate_bits / 1e6:g} Mbit/s"
    return (
        f"{cell.task}, {links}, {cell.way} x {cell.factor:g}, seed {cell.seed}: {ms:.0f} ms a step, loss {loss:.3f}"
    )


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), metavar="A,B")
    parser.add_argument("--ways", default="", metavar="A;B", help="these alone, with semicolons between them")
    parser.add_argument("--learning", action="store_true", help="runs to the loss alone, which may share the machine")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="so many, of runs to the loss")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="losses over seconds, as PNG and as SVG")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    known = {Cell(**{name: row[name] for name in Cell.__dataclass_fields__ if name in row}) for row in rows}
    tasks, ways = options.tasks.split(","), options.ways.split(";") if options.ways else [ALONE, *WAYS]

    def run(wanted: Iterable[Cell]) -> None:
        for cell in wanted:
            if cell.way in ways and cell not in known:
                rows.append(measure(cell))
                save_rows(options.json, rows)
                print(_told(cell, rows[-1]), flush=True)

    for seed in range(options.seeds):
        run(curves_of(tasks, rows, seed))
    if not options.learning:
        run(timed_cells(tasks))
    if options.draw is not None:
        draw(rows, options.draw)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
