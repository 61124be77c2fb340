"""One process, data-parallel and hybrid workers on the same job: `python -m benchmarks convergence --help`.

Trains a model with the same global batch by one worker, by several that exchange all gradients, and by several whose
fully connected layers are spread over them, with one update a step and with one after every pass, and draws the
curves. Ways that the file holds are not trained again. Needs the data set (docs/fashion_mnist.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.base.rows import in_lines

__all__ = ["WAYS", "draw", "train"]

_BY_PASS = ("--exchange", "ring", "--fc", "shard", "--set", "exchange.fc_update=pass")
WAYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "one worker": ("--servers", "1"),
        "data-parallel": ("--exchange", "ring"),
        "hybrid, gather": ("--exchange", "ring", "--fc", "shard"),
        "hybrid, slices, servers": ("--servers", "2", "--fc", "shard", "--set", "exchange.fc_scheme=slices"),
        "turns, updates by pass": (*_BY_PASS, "--set", "exchange.fc_scheme=turns"),
        "slices, updates by pass": (*_BY_PASS, "--set", "exchange.fc_scheme=slices"),
    }
)


def train(way: str, workers: int, batch: int, common: list[str]) -> dict[str, Any]:
    """The results of one way; `batch` is that of all workers together."""
    count = 1 if way == "one worker" else workers
    command = [sys.executable, "-P", "-m", "taihu", "train", "--workers", str(count), "--batch", str(batch // count)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        subprocess.run(
            [*command, *WAYS[way], *common, "--json", str(result), "--run-dir", "none"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        results: dict[str, Any] = json.loads(result.read_text())
    return results


def draw(curves: Mapping[str, list[dict[str, Any]]], picture: Path, title: str) -> None:
    """Training loss and test accuracy over the epochs, a line for each way."""
    figure, (losses, accuracies) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for number, (way, evaluations) in enumerate(curves.items()):
        epochs = [evaluation["epoch"] for evaluation in evaluations]
        style = {"marker": "osv^xD"[number % 6], "label": way, "alpha": 0.7, "markersize": 9 - number}
        losses.plot(epochs, [e["train_loss"] for e in evaluations], **style)
        accuracies.plot(epochs, [100 * e["test_accuracy"] for e in evaluations], **style)
    losses.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    accuracies.set(xlabel="epoch", ylabel="test accuracy, %")
    losses.legend()
    for axes in (losses, accuracies):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Train in every way that there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar10_quick")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=96, help="of all workers together")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to every run")
    parser.add_argument("--json", type=Path, required=True, help="write the curves that it lacks")
    parser.add_argument("--draw", type=Path, required=True, help="draw them")
    options = parser.parse_args()
    common = ["--model", options.model, "--data", options.data, "--epochs", str(options.epochs)]
    common += [f"--set={item}" for item in options.set]
    curves: dict[str, list[dict[str, Any]]] = {}
    if options.json.exists():
        curves = json.loads(options.json.read_text())
    print("| | " + " | ".join(f"epoch {epoch}" for epoch in range(1, options.epochs + 1)) + " |", flush=True)
    print("|---" * (options.epochs + 1) + "|")
    for way in WAYS:
        if way not in curves:
            curves[way] = train(way, options.workers, options.batch, common)["evaluations"]
        cells = " | ".join(f"{100 * evaluation['test_accuracy']:.2f} %" for evaluation in curves[way])
        print(f"| {way} | {cells} |", flush=True)
        options.json.write_text(in_lines(curves) + "\n")
    draw(curves, options.draw, f"{options.model} on {options.data}, {options.workers} workers, batch {options.batch}")


if __name__ == "__main__":
    main()
