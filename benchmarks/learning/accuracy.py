"""Final accuracy under compression or in mixed precision: `python -m benchmarks accuracy --help`.

Trains the same job with every setting and several seeds by `taihu train`, one run after the other, and writes the
evaluations of all runs. `--draw` draws the curves (mean and range over the seeds) and, for DLGS, how far thresholds
drifted and how many values were selected between refreshes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

__all__ = ["train"]

_PRECISIONS = ("bf16", "fp16")
_KEYS = ("test_accuracy", "evaluations", "steps", "selected_ratio", "thresholds", "parameters_sha256")


def train(job: Path, method: str, density: float, seed: int, extra: Sequence[str]) -> dict[str, Any]:
    """One whole run."""
    compression = (
        []
        if method == "none"
        else [
            *("--compression", method, "--density", str(density)),
            *("--set", "compression.momentum_at=workers"),  # as the papers have it
        ]
    )
    if method in _PRECISIONS:
        compression = ["--precision", method]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        flags = [*compression, "--seed", str(seed), *extra, "--json", str(result)]
        subprocess.run(
            [sys.executable, "-P", "-m", "taihu", "train", str(job), *flags, "--run-dir", "none"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        results = json.loads(result.read_text())
    if seed > 1:  # one seed's are drawn, and they are long
        results["thresholds"] = None
    return {"method": method, "density": density, "seed": seed, **{key: results[key] for key in _KEYS}}


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Final accuracies as Markdown; the difference is that of the means."""
    lines = ["| method | density | accuracy by seed, % | mean, % | difference to none |", "|---|---|---|---|---|"]
    by_setting = _by_setting(runs)
    dense = [100 * run["test_accuracy"] for run in by_setting.get(("none", 1.0), [])]
    for (method, density), chosen in by_setting.items():
        accuracies = [100 * run["test_accuracy"] for run in chosen]
        difference = f"{fmean(accuracies) - fmean(dense):+.2f}" if dense else "-"
        shown = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        lines.append(f"| {method} | {density:g} | {shown} | {fmean(accuracies):.2f} | {difference} |")
    return "\n".join(lines)


def draw(runs: Sequence[dict[str, Any]], picture: Path) -> None:
    """Accuracy over the epochs; drift and selected counts of the thresholds of the first seed."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (curves, drifts, ages) = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for (method, density), chosen in _by_setting(runs).items():
        label = method if method == "none" else f"{method} {density:g}"
        epochs = [evaluation["epoch"] for evaluation in chosen[0]["evaluations"]]
        accuracies = [[100 * e["test_accuracy"] for e in run["evaluations"]] for run in chosen]
        by_epoch = list(zip(*accuracies, strict=True))
        curves.plot(epochs, [fmean(values) for values in by_epoch], marker=".", label=label)
        curves.fill_between(epochs, [min(v) for v in by_epoch], [max(v) for v in by_epoch], alpha=0.2)
        refreshes = chosen[0]["thresholds"]["refreshes"] if chosen[0]["thresholds"] else None
        if refreshes:
            drifts.plot(refreshes["step"], refreshes["drift"], ".", markersize=2, label=label)
            ages.hist(refreshes["age"], bins=33, alpha=0.5, label=label)
    curves.set(xlabel="epoch", ylabel="test accuracy, %", title="accuracy, mean and range over the seeds")
    drifts.set(xlabel="step", ylabel="|dH| / H", yscale="log", title="drift of a threshold until its refresh")
    ages.set(xlabel="steps that a threshold was used", ylabel="refreshes", title="early refreshes and due ones")
    for axis in (curves, drifts, ages):
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(picture, dpi=110)


def _by_setting(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, float], list[dict[str, Any]]]:
    settings: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for run in runs:
        settings.setdefault((run["method"], run["density"]), []).append(run)
    return settings


def main() -> None:
    """Train what the command line names, or draw what was trained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=Path("examples/fashion_mnist.toml"))
    parser.add_argument(
        "--settings",
        default="none:1,dlgs:0.1,dlgs:0.01",
        help="comma-separated method:density; bf16:1 and fp16:1 are mixed precision",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to `taihu train`")
    parser.add_argument("--json", type=Path, required=True, help="runs that the file holds are not repeated")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the runs of --json, train nothing")
    options = parser.parse_args()
    runs: list[dict[str, Any]] = json.loads(options.json.read_text()) if options.json.exists() else []
    if options.draw is None:
        extra = [f"--set={item}" for item in options.set]
        done = {(run["method"], run["density"], run["seed"]) for run in runs}
        for seed in range(1, options.seeds + 1):
            for setting in options.settings.split(","):
                method, _, density = setting.partition(":")
                if (method, float(density), seed) not in done:
                    runs.append(train(options.job, method, float(density), seed, extra))
                    options.json.write_text(json.dumps(runs) + "\n")
                    print(table(runs[-1:]).splitlines()[-1], flush=True)
    else:
        draw(runs, options.draw)
    print(table(runs))


if __name__ == "__main__":
    main()
