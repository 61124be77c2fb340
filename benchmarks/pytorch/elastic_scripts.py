"""A transformer's script whose workers come and go: `python -m benchmarks elastic_scripts --help`.

The example `transformer_text.py` draws its batches by an ElasticSampler. Two workers begin, `taihu scale` asks for
four and then for three, and between them workers are killed. The loss is beside that of a run of three workers that
nobody disturbs: the batch of all workers together is the same in each step.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np

from benchmarks.base.rows import publish, save_picture, save_rows
from benchmarks.pytorch.killed_scripts import KeptRun, Made

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["draw", "table"]

_PAGE: Final = "measured by benchmarks.pytorch.elastic_scripts"
_SIZES: Final = (2, 4, 3)
_MOST: Final = max(_SIZES)
_FIXED: Final = 3
_LOOK_S: Final = 0.01
_LONGEST_S: Final = 300.0
_MEAN_OF: Final = 25


def _row(name: str, run: KeptRun, changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The steps of a run: number, workers, their mean loss, seconds since the first one, samples of all."""
    made: dict[int, list[Made]] = {}
    for rank in range(_MOST):
        for each in run.losses(rank):
            made.setdefault(each.step, []).append(each)
    begun_s = min(each.at_s for of_step in made.values() for each in of_step)
    steps = []
    for step, of_step in sorted(made.items()):
        # A life that was ended in a step had given it up.
        last = [each for each in of_step if each.life == max(each.life for each in of_step)]
        losses, samples = [float.fromhex(each.loss) for each in last], [each.samples for each in last]
        at_s = max(each.at_s for each in last) - begun_s
        steps.append([step, len(last), float(np.average(losses, weights=samples)), at_s, sum(samples)])
    return {"run": name, "steps": steps, "changes": list(changes)}


def _is_at(step: int, made: Made) -> bool:
    return made.step >= step


def _await(run: KeptRun, is_there: Callable[[Made], bool]) -> Made:
    """The first step of worker 0 for which `is_there`, once it is made."""
    deadline = time.monotonic() + _LONGEST_S
    while (found := next(filter(is_there, run.losses()), None)) is None:
        if time.monotonic() > deadline or run.process.poll() is not None:
            run.process.kill()
            raise SystemExit(f"error: the run does not go on: {run.process.communicate()[1]}")
        time.sleep(_LOOK_S)
    return found


def _changed(run: KeptRun, what: str, change: Callable[[], object]) -> dict[str, Any]:
    """Change something; the first new step of another life tells how long that took."""
    last, begin_s = run.losses()[-1], time.monotonic()
    change()
    new = _await(run, lambda made: made.life > last.life and made.step > last.step)
    return {"step": last.step, "what": what, "seconds": new.at_s - begin_s}


def _elastic(folder: Path, steps: int, kills: int) -> dict[str, Any]:
    drawn = random.Random(1)  # noqa: S311 - no secret
    run = KeptRun(folder, (), steps, restarts=10 * (kills + 1), workers=_SIZES[0], is_elastic=True)
    share = steps // len(_SIZES)
    changes: list[dict[str, Any]] = []
    for index, size in enumerate(_SIZES):
        for kill in range(kills):
            due = index * share + (kill + 1) * share // (kills + 1)
            _await(run, partial(_is_at, due))
            changes.append(_changed(run, "kill", partial(run.kill, drawn.randrange(size))))
        if index + 1 < len(_SIZES):
            due = (index + 1) * share
            _await(run, partial(_is_at, due))
            command = [sys.executable, "-P", "-m", "taihu", "scale", "run", str(_SIZES[index + 1])]
            scale = partial(subprocess.run, command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            changes.append(_changed(run, f"{size} to {_SIZES[index + 1]} workers", scale))
    _, hashes = run.end(_SIZES[-1])
    if len(hashes) != 1:
        raise SystemExit("error: the workers have ended with different parameters")
    return _row("2, then 4, then 3 workers, with kills", run, changes)


def _fixed(folder: Path, steps: int) -> dict[str, Any]:
    run = KeptRun(folder, (), steps, workers=_FIXED, is_elastic=True)
    run.end(_FIXED)
    return _row(f"{_FIXED} workers", run, [])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a page shows them."""
    elastic, fixed = rows
    ends = [np.mean([each[2] for each in row["steps"][-50:]]) for row in rows]
    apart = max(abs(one[2] - other[2]) for one, other in zip(elastic["steps"], fixed["steps"], strict=True))
    batches = {each[4] for row in rows for each in row["steps"]}
    lines = [
        "| change | behind step | to the first new step |\n|---|---|---|\n",
        *(f"| {each['what']} | {each['step']} | {each['seconds']:.2f} s |\n" for each in elastic["changes"]),
        f"\nSamples of all workers in a step: {', '.join(map(str, sorted(batches)))}. Loss of the last 50 steps "
        f"{ends[0]:.4f}, of {fixed['run']} that nobody disturbs {ends[1]:.4f}; no step's losses are more than "
        f"{apart:.1e} apart.\n",
    ]
    return "".join(lines)


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Loss, workers and the time of a step over steps."""
    figure, (above, middle, below) = plt.subplots(
        3, 1, figsize=(6.4, 5.6), sharex=True, layout="constrained", height_ratios=(3, 1, 1)
    )
    for row, style in zip(rows, ("-", "--"), strict=True):
        steps, workers, losses, at_s, _ = np.array(row["steps"]).T
        kernel = np.ones(_MEAN_OF) / _MEAN_OF
        above.plot(steps[_MEAN_OF - 1 :], np.convolve(losses, kernel, "valid"), style, label=row["run"])
        middle.step(steps, workers, style, where="mid")
        below.plot(steps[1:], np.diff(at_s) * 1000, style, linewidth=0.8)
    for change in rows[0]["changes"]:
        above.axvline(change["step"], color="red" if change["what"] == "kill" else "grey", linewidth=0.6)
    above.set(ylabel=f"loss, mean of {_MEAN_OF} steps", title="Transformer on Python's sources; red: a kill")
    middle.set(ylabel="workers", yticks=range(1, _MOST + 1))
    below.set(ylabel="ms a step", xlabel="step", yscale="log")
    for axes in (above, middle, below):
        axes.grid(alpha=0.3)
    above.legend()
    save_picture(figure, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--kills", type=int, default=3, help="with each number of workers")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--picture", type=Path, help="for example docs/elastic_scripts.png; the SVG comes beside it")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            _elastic(Path(folder) / "elastic", options.steps, options.kills),
            _fixed(Path(folder) / "fixed", options.steps),
        ]
    save_rows(options.json, rows)
    if options.picture is not None:
        draw(rows, options.picture)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
