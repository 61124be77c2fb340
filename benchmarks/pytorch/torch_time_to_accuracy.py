"""Time to an accuracy on Fashion-MNIST over shaped links: `python -m benchmarks torch_time_to_accuracy --help`.

Three workers with a host each (network namespaces with shaped links, as root) train the same network from the same
values until worker 0 measures the accuracy on the test images, one way after the other: by DistributedDataParallel
over Gloo, plain, with the hooks fp16 and PowerSGD and with taihu's hook, and by taihu's optimizer, with dlgs at 5 %
and at 1 %. The clock stands still during tests; all have the same learning rates, which fall in a line; without
momentum they are five times as high. Rows that the file of --json
holds are not trained again. Needs Debian's dataset-fashion-mnist.

    python -m benchmarks torch_time_to_accuracy --json /tmp/rows.json
    python -m benchmarks torch_time_to_accuracy --json /tmp/rows.json --steps 60 --goal 0.5  # to try it
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from benchmarks.base.network import ShapedNetwork, run_torch_workers
from benchmarks.base.rows import load_rows, publish, save_picture, save_rows
from benchmarks.pytorch.torch_fashion import WAYS

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["draw", "measure", "table"]

_PAGE: Final = "measured by benchmarks.pytorch.torch_time_to_accuracy"
_WORKERS: Final = 3


def measure(way: str, rate_bits: float, goal: float, steps: int, limit_s: float) -> dict[str, Any]:
    """A row: seconds of training and accuracies behind them, until `goal`, `steps` or `limit_s` are reached."""
    has_server = WAYS[way].has_server
    with tempfile.TemporaryDirectory() as name, ShapedNetwork(_WORKERS + has_server, rate_bits) as network:
        result = Path(name) / "curve.json"
        command = [sys.executable, "-m", "benchmarks.pytorch.torch_fashion", "--way", way, "--json", str(result)]
        command += ["--goal", str(goal), "--steps", str(steps), "--limit", str(limit_s)]
        run_torch_workers(network, command, WAYS[way].environment, shown=True, has_server=has_server)
        curve = json.loads(result.read_text())
    return {"way": way, "rate_bits": rate_bits, "goal": goal, "load": os.getloadavg()[0], **curve}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown: time to the goal, steps, and milliseconds of a step."""
    lines = [
        "| links | way | seconds to the goal | steps | ms of a step | accuracy then | DDP's time to it |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plain = next((each for each in rows if each["way"] == "DDP" and _alike(each, row) and _reached(each)), None)
        seconds, steps, last = row["seconds"][-1], row["steps"][-1], row["accuracies"][-1]
        time = f"{seconds:.1f}" if _reached(row) else f"not within {seconds:.0f}"
        ratio = f"{plain['seconds'][-1] / seconds:.2f}" if plain is not None and _reached(row) else ""
        rate = f"{row['rate_bits'] / 1e6:g} Mbit/s"
        cells = rate, row["way"], time, str(steps), f"{1e3 * seconds / steps:.0f}", f"{last:.2%}", ratio
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Accuracy over seconds by way, a panel for each rate."""
    rates = list(dict.fromkeys(row["rate_bits"] for row in rows))
    size = 6.4 * len(rates), 3.6
    figure, panels = plt.subplots(1, len(rates), figsize=size, layout="constrained", squeeze=False)
    for axes, rate in zip(panels[0], rates, strict=True):
        for row in (row for row in rows if row["rate_bits"] == rate):
            axes.plot(row["seconds"], [100 * each for each in row["accuracies"]], marker=".", label=row["way"])
        axes.axhline(100 * rows[0]["goal"], color="gray", linewidth=0.8)
        axes.set(
            xlabel="seconds of training",
            ylabel="test accuracy, %",
            title=f"Fashion-MNIST, 3 hosts, {rate / 1e6:g} Mbit/s",
            ylim=(70, None),
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    save_picture(figure, picture)


def _alike(row: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(row["rate_bits"] == other["rate_bits"])


def _reached(row: dict[str, Any]) -> bool:
    return bool(row["accuracies"][-1] >= row["goal"])


def main() -> None:
    """Train in the ways that are missing, draw, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="", metavar="A;B", help="these alone, with semicolons between them")
    parser.add_argument("--rate", type=float, default=100e6, help="bits per second of each link")
    parser.add_argument("--goal", type=float, default=0.9)
    parser.add_argument("--steps", type=int, default=900, help="in which the learning rate falls to nothing")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of training in each way")
    parser.add_argument("--json", type=Path, help="write the rows, and train those that it lacks")
    parser.add_argument(
        "--picture", type=Path, help="for example docs/torch_time_to_accuracy.png; the SVG comes beside it"
    )
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    known = {(row["way"], row["rate_bits"]) for row in rows}
    for way in options.ways.split(";") if options.ways else WAYS:
        if (way, options.rate) not in known:
            rows.append(measure(way, options.rate, options.goal, options.steps, options.limit))
            save_rows(options.json, rows)
            print(table(rows).splitlines()[-1], flush=True)
    if options.picture is not None:
        draw(rows, options.picture)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
