"""Accuracy of the methods of compression side by side: `python -m benchmarks accuracy_by_method --help`.

A cell is one model trained by one method at one density from one seed, by three workers, with a density that is what
it is from the first step on, or falls to it within the first epoch. A cell is one process of one thread, in which the
workers take turns: each has the batches, the compression and the residual of its own that it has in `taihu train`,
what they selected is summed in the order of their ranks, and all parameters are the same bits as those of a run of
processes (`--check` trains an epoch both ways). Cells that the file holds are not trained again, so that this may be
ended and started again.

The jobs are scaled down to what a core does in 15 to 30 seconds: Cifar10-quick on 8,000 images of Fashion-MNIST, 2
epochs, and ResNet-20 on 768 of them at 8 x 8 points by the paper's schedule divided by ten, 14 epochs with rates of
0.1, 0.01 and 0.001 from the epochs 9 and 13 on. Both are tested on 2,000 images.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from benchmarks.base.rows import in_page, load_rows, train_missing
from benchmarks.learning.workers_in_turns import WorkersInTurns, train_on_first
from taihu.core.job import Job
from taihu.core.job.reading import load_job, parse_assignments

__all__ = ["JOBS", "Cell", "cells", "told", "train"]

_PAGE = "measured by benchmarks.learning.accuracy_by_method"
_WORKERS = 3
_BATCH = 16
_DATA: dict[str, Any] = {"name": "fashion-mnist"}
JOBS: Mapping[str, tuple[int, dict[str, Any]]] = MappingProxyType(
    {
        "cifar10_quick": (
            8000,
            {
                "data": _DATA,
                "train": {"epochs": 2},
                "optimizer": {"learning_rate": 0.02, "weight_decay": 5e-4, "schedule": "cosine", "warmup_steps": 50},
            },
        ),
        "resnet20": (
            768,
            {
                "data": {**_DATA, "resize": "8x8"},
                "train": {"epochs": 14},
                "optimizer": {
                    "learning_rate": 0.1,
                    "weight_decay": 1e-4,
                    "schedule": "step",
                    "milestone_epochs": [8, 12],
                },
            },
        ),
    }
)
"""By model: the number of images to train on, and the job."""

_DENSITIES = (0.1, 0.01)
_SEEDS = 3
_METHODS = (("topk", "layer"), ("lags", "layer"), ("dlgs", "layer"), ("dlgs", "group"))


@dataclass(frozen=True)
class Cell:
    """One training; with `falls` the density falls from 1 within the first epoch."""

    model: str
    method: str
    threshold: str
    density: float
    falls: bool
    seed: int

    @property
    def label(self) -> str:
        """Its method, as tables and pictures call it."""
        return f"dlgs, {self.threshold}" if self.method == "dlgs" else self.method


def cells(models: Sequence[str], densities: Sequence[float], seeds: int) -> Iterator[Cell]:
    """All cells: everything sent, and each method at each density, with and without one that falls."""
    yield from (
        Cell(model, "none", "layer", 1.0, falls=False, seed=1 + seed) for seed in range(seeds) for model in models
    )
    for falls, density in itertools.product((False, True), sorted(densities)):
        for seed, model, (method, threshold) in itertools.product(range(seeds), models, _METHODS):
            yield Cell(model, method, threshold, density, falls, 1 + seed)


def job_of(cell: Cell) -> Job:
    """The job of a cell; where groups share thresholds they are named, so that runs repeat."""
    images, sections = JOBS[cell.model]
    steps = images // (_WORKERS * _BATCH)
    optimizer = {"momentum": 0.9, **sections["optimizer"]}
    compression = {
        "method": cell.method,
        "density": cell.density,
        "threshold": cell.threshold,
        "density_warmup_steps": steps if cell.falls else 0,
    }
    if cell.method != "none":
        compression["momentum_at"] = "workers"  # as the papers have it
    return Job.model_validate(
        {
            **sections,
            "model": {"name": cell.model},
            "train": {**sections["train"], "batch": _BATCH, "seed": cell.seed},
            "optimizer": optimizer,
            "compression": compression,
            "exchange": {"plan": "single" if cell.method == "topk" else "bucket:100kB"},
            "cluster": {"servers": 1, "workers": _WORKERS, "threads": 1},
        }
    )


def train(cell: Cell, path: Path | None = None) -> dict[str, Any]:
    """Train one cell: its accuracy and loss after every epoch, what was sent, and the thresholds of worker 0.

    The data set's files are in the folder `path`, if they are not where the job looks.
    """
    return {**asdict(cell), **train_on_first(job_of(cell), JOBS[cell.model][0], path)}


def told(rows: Sequence[dict[str, Any]]) -> str:
    """The number of cells and their table, as the page has them."""
    total = sum(1 for _ in cells(list(JOBS), _DENSITIES, _SEEDS))
    return f"{len(rows)} of {total} cells have been trained; `-` is what has not.\n\n{table(rows)}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Final accuracies as Markdown: means over the seeds, and by how much they differ from what everything gives."""
    lines = [
        "| model | density | method | accuracy by seed, % | mean | to none | falling: by seed, % | mean | to none |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        dense = _accuracies(rows, model, "none", 1.0, falls=False)
        if dense:
            lines.append(f"| {model} | 1 | none | {_seeds(dense)} | - | | | |")
        for density in sorted({row["density"] for row in rows if row["method"] != "none"}, reverse=True):
            for method, threshold in _METHODS:
                label = Cell(model, method, threshold, density, falls=False, seed=0).label
                columns = (
                    _column(_accuracies(rows, model, label, density, falls=falls), dense) for falls in (False, True)
                )
                lines.append(f"| {model} | {density:g} | {label} | {' | '.join(columns)} |")
    return "\n".join(lines)


def _label(row: Mapping[str, Any]) -> str:
    return Cell(row["model"], row["method"], row["threshold"], row["density"], row["falls"], row["seed"]).label


def _accuracies(
    rows: Sequence[dict[str, Any]], model: str, label: str, density: float, *, falls: bool
) -> list[float]:
    chosen = (model, label, density, falls)
    found = [row for row in rows if (row["model"], _label(row), row["density"], row["falls"]) == chosen]
    return [100 * row["test_accuracy"] for row in sorted(found, key=lambda row: int(row["seed"]))]


def _seeds(accuracies: Sequence[float]) -> str:
    return f"{', '.join(f'{each:.2f}' for each in accuracies)} | {fmean(accuracies):.2f}"


def _column(accuracies: Sequence[float], dense: Sequence[float]) -> str:
    if not accuracies:
        return "- | - | -"
    return f"{_seeds(accuracies)} | {fmean(accuracies) - fmean(dense):+.2f}" if dense else f"{_seeds(accuracies)} | -"


def drifts(rows: Sequence[dict[str, Any]]) -> str:
    """The thresholds of DLGS by layer as Markdown: how often they were made anew, and how much had changed."""
    lines = [
        "| model | density | layer or group | elements | updates per exact threshold | median drift | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["method"] == "dlgs" and row["seed"] == 1 and not row["falls"]:
            for unit in row["thresholds"]:
                each = unit["updates"] / max(1, unit["refreshes"])
                drift = f"{unit['median_drift']:.3f} | {unit['largest_drift']:.2f}" if unit["refreshes"] else "- | -"
                name = f"{row['model']} | {row['density']:g} | {unit['name']}"
                lines.append(f"| {name} | {unit['elements']:,} | {each:.1f} | {drift} |")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Accuracy over the epochs, a panel for each model and density; thin lines are those of densities that fall."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    models = list(dict.fromkeys(row["model"] for row in rows))
    densities = sorted({row["density"] for row in rows if row["method"] != "none"}, reverse=True)
    inches = 5 * len(densities), 3.6 * len(models)
    figure, axes = plt.subplots(len(models), len(densities), figsize=inches, layout="constrained", squeeze=False)
    for axes_of_model, model in zip(axes, models, strict=True):
        for axis, density in zip(axes_of_model, densities, strict=True):
            chosen = [row for row in rows if row["model"] == model and row["density"] in (1.0, density)]
            for number, label in enumerate(dict.fromkeys(map(_label, chosen))):
                for falls in (False, True):
                    runs = [row for row in chosen if _label(row) == label and row["falls"] == falls]
                    if runs:
                        curves = [[100 * epoch["test_accuracy"] for epoch in row["epochs"]] for row in runs]
                        means = [fmean(values) for values in zip(*curves, strict=True)]
                        width, name = (0.8, "") if falls else (1.8, label)
                        axis.plot(range(1, len(means) + 1), means, label=name, color=f"C{number}", linewidth=width)
            axis.set(title=f"{model}, density {density:g}", xlabel="epoch", ylabel="test accuracy, %")
            axis.grid(alpha=0.3)
            axis.legend()
    figure.savefig(picture, dpi=110)


def check(method: str, threshold: str) -> bool:
    """Train on the digits for an epoch here and by `taihu train`; whether both end with the same bits."""
    from taihu.worker.data.batches import Batches  # noqa: PLC0415
    from taihu.worker.data.load import load_dataset  # noqa: PLC0415
    from taihu.worker.engine import build_model  # noqa: PLC0415

    settings = {
        "model.name": "resnet20",
        "data.name": "digits",
        "train.batch": _BATCH,
        "train.epochs": 1,
        "optimizer.weight_decay": 1e-4,
        "compression.method": method,
        "compression.threshold": threshold,
        "compression.momentum_at": "auto" if method == "none" else "workers",
        "exchange.plan": "single" if method == "topk" else "bucket:100kB",
        "cluster.servers": 1,
        "cluster.workers": _WORKERS,
        "cluster.threads": 1,
    }
    assignments = [f"{key}={value}" for key, value in settings.items()]
    job = load_job(None, parse_assignments(assignments))
    dataset = load_dataset(job.data)
    model = build_model("resnet20", dataset.input_shape, dataset.outputs)
    model.use_threads(1)
    batches = [Batches(dataset, batch=_BATCH, workers=_WORKERS, rank=r, seed=job.train.seed) for r in range(_WORKERS)]
    own = WorkersInTurns(job, model, batches).run(dataset)["parameters_sha256"]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        flags = [*(f"--set={each}" for each in assignments), "--json", str(result), "--run-dir", "none"]
        command = [sys.executable, "-P", "-m", "taihu", "train", *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        theirs = json.loads(result.read_text())["parameters_sha256"]
    print(f"{method}, {threshold}: {own[:16]} here, {theirs[:16]} by taihu train")
    return bool(own == theirs)


def main() -> None:
    """Train the cells that are missing, or draw those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(JOBS), help="comma-separated")
    parser.add_argument("--densities", default=",".join(map(str, _DENSITIES)), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=_SEEDS)
    parser.add_argument("--json", type=Path, help="cells that the file holds are not trained again")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the cells of --json, train nothing")
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE", help="with --draw: put the table between its marks there"
    )
    parser.add_argument("--path", type=Path, help="the folder of Fashion-MNIST")
    parser.add_argument("--cell", help="train this one, an object of JSON, and print its row")
    parser.add_argument("--check", action="store_true", help="compare the bits of an epoch with `taihu train`")
    options = parser.parse_args()
    if options.cell is not None:
        print(json.dumps(train(Cell(**json.loads(options.cell)), options.path)))
        return
    if options.check:
        same = [check(method, threshold) for method, threshold in (("none", "layer"), *_METHODS)]
        raise SystemExit(0 if all(same) else 1)
    rows = load_rows(options.json)
    if options.draw is not None:
        draw(rows, options.draw)
        if options.docs is not None:
            options.docs.write_text(in_page(options.docs.read_text(), _PAGE, told(rows)))
        print(f"{table(rows)}\n\n{drifts(rows)}")
        return
    wanted = cells(options.models.split(","), [float(each) for each in options.densities.split(",")], options.seeds)
    train_missing(
        "accuracy_by_method", wanted, rows, options.json, options.path, lambda row: f"{row['test_accuracy']:.2%}"
    )
    print(table(rows))


if __name__ == "__main__":
    main()
