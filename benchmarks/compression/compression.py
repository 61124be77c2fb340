"""Training steps under compression over shaped links: `python -m benchmarks compression --help`.

One server and three workers on hosts of their own (see `base.network`) train a model of the zoo on synthetic
images; the times are those of the real training loop. Every method runs by the plan that belongs to it: global Top-K
as one group, LAGS with every layer on its own, dense and DLGS by the plan that the run computes as it measures;
`dlgs-group` is DLGS with a threshold for each group instead of each layer, `dlgs-printed` uses thresholds again
however many values they let through (`compression.threshold_slack = "none"`). The
settings of one model and rate take turns, `--rounds` times over, so that what else the machine does meets them alike.
Prints a line for each run and, with --json, writes it; the table at the end shows medians over the runs of a setting.
`--draw` draws the breakdown of the runs in a file. `--thresholds` compares `dlgs` and `dlgs-group` in the eight cells
of docs/compression.md, where they take turns within each run: see `compression.thresholds`; a quarter of an hour.
With `--compute modelled` gradients are noise that takes the model's time without a processor
(benchmarks/models/paced.py), so that workers share nothing but links; `--docs` writes the methods side by side into a
page.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.base.roles import run_job
from benchmarks.base.rows import in_page, load_rows, save_rows
from benchmarks.compression.thresholds import CELLS, COMPUTE, data_and_model, measure_in_turns, told

__all__ = ["measure", "side_by_side", "steps_by_cell"]

_WORKERS = 3
_PLANS = {"topk": "single", "lags": "per-layer"}
_VARIANTS = {
    "dlgs-group": {"compression.threshold": "group"},
    "dlgs-printed": {"compression.threshold_slack": "none"},
}
_SIDE_BY_SIDE = ("topk", "lags", "dlgs")
_PRINTED = "dlgs-printed"
_MARK = "measured by benchmarks.compression.compression"
_KEYS = (
    "seconds_per_step",
    "seconds_compute",
    "seconds_compress",
    "seconds_compress_wait",
    "seconds_exchange",
    "seconds_wait",
    "bytes_sent_per_step",
    "bytes_received_per_step",
    "selected_ratio",
    "predicted_seconds_per_step",
    "measured_steps",
    "groups",
)


def measure(model: str, rate: str, method: str, density: float, options: argparse.Namespace) -> dict[str, Any]:
    """One row; times are worker 0's, bytes those of all workers together."""
    settings = {
        **_common(options.batch),
        **data_and_model(model, options.compute),
        "train.steps": 2 * options.calibration + options.steps,
        "exchange.plan": _PLANS.get(method, "auto"),
        "exchange.calibration_steps": options.calibration,
        "compression.method": method.partition("-")[0],
        "compression.density": density,
        **_VARIANTS.get(method, {}),
    }
    results = run_job(settings, rate, servers=1, workers=_WORKERS, extra=options.set)
    row = {key: results[0][key] for key in _KEYS}
    for key in ("bytes_sent_per_step", "bytes_received_per_step"):
        row[key] = sum(result[key] for result in results)
    predicted = row["predicted_seconds_per_step"]
    row["prediction_error"] = predicted / row["seconds_per_step"]["median"] - 1 if predicted else None
    cell = {"compute": options.compute, "model": model, "rate": rate, "method": method, "density": density}
    return {**cell, "batch": options.batch, **row}


def _common(batch: int) -> dict[str, object]:
    """Settings of all runs."""
    return {
        "train.batch": batch,
        "train.evaluate": "false",
        "optimizer.learning_rate": 0.01,
        "exchange.transport": "tcp",
        "cluster.servers": 1,
        "cluster.workers": _WORKERS,
        "cluster.threads": 1,
    }


def settings_of(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The runs of each setting, settings in the order in which they came first."""
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        setting = row.get("compute", "real"), *(row[key] for key in ("model", "rate", "method", "density"))
        runs.setdefault(setting, []).append(row)
    return list(runs.values())


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The settings as Markdown, medians over their runs; speed-up and bytes are relative to `none`'s."""
    dense = {(runs[0]["model"], runs[0]["rate"]): runs for runs in settings_of(rows) if runs[0]["method"] == "none"}
    lines = [
        "| model | links | method | density | step s | of runs | compute | sparsify | communicate | speed-up | bytes "
        "| groups | predicted s | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(runs, dense.get((runs[0]["model"], runs[0]["rate"]))) for runs in settings_of(rows)]
    return "\n".join(lines)


def side_by_side(rows: Sequence[dict[str, Any]]) -> str:
    """The methods of each cell as Markdown: medians of their runs, the range of those, and the fastest's lead.

    Where DLGS ran as printed, too, it stands beside, with the share of values that it and ours sent, and the lead is
    among the three methods with DLGS as printed.
    """
    cells = _runs_by_cell(rows)
    is_printed = any(_PRINTED in steps for steps in cells.values())
    methods = (*_SIDE_BY_SIDE, _PRINTED) if is_printed else _SIDE_BY_SIDE
    racing = tuple(method for method in methods if not (is_printed and method == "dlgs"))
    columns = "compute", "model", "links", "density", *(f"{method}, s" for method in methods)
    columns = (*columns, "sent: dlgs", "as printed", "fastest") if is_printed else (*columns, "fastest")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for (compute, model, rate, density), steps in cells.items():
        if not set(methods) <= set(steps):
            continue
        shown = [_of_runs(steps[method]) for method in methods]
        if is_printed:
            shown += [_sent(rows, (compute, model, rate, density), method) for method in ("dlgs", _PRINTED)]
        first_two = sorted(racing, key=lambda method: statistics.median(steps[method]))[:2]
        best, second = (statistics.median(steps[method]) for method in first_two)
        lead = f"{first_two[0]}, {second / best - 1:.1%} before {first_two[1]}"
        lines.append(f"| {compute} | {model} | {rate} | {density:g} | {' | '.join(shown)} | {lead} |")
    return "\n".join(lines)


def _sent(rows: Sequence[dict[str, Any]], cell: tuple[str, str, str, float], method: str) -> str:
    """The share of values that a method sent in a cell, the mean of its runs."""
    keys = ("compute", "model", "rate", "density")
    shares = [
        row["selected_ratio"] for row in rows if (*(row[key] for key in keys), row["method"]) == (*cell, method)
    ]
    return f"{statistics.fmean(shares):.4f}"


def _runs_by_cell(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str, float], dict[str, list[float]]]:
    """Median steps of each run by compute, model, links and density, and by method."""
    cells: dict[tuple[str, str, str, float], dict[str, list[float]]] = {}
    for runs in settings_of(rows):
        first = runs[0]
        cell = first.get("compute", "real"), first["model"], first["rate"], first["density"]
        cells.setdefault(cell, {})[first["method"]] = [row["seconds_per_step"]["median"] for row in runs]
    return cells


def steps_by_cell(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str, float], dict[str, float]]:
    """Seconds of a step, the median of runs, by compute, model, links and density, and by method."""
    return {
        cell: {method: statistics.median(runs) for method, runs in methods.items()}
        for cell, methods in _runs_by_cell(rows).items()
    }


def _of_runs(steps: Sequence[float]) -> str:
    return f"{statistics.median(steps):.4f} ({min(steps):.4f} - {max(steps):.4f} of {len(steps)})"


def parts(row: dict[str, Any]) -> tuple[float, float, float]:
    """Compute, selection and communication of a step, none hidden by another (docs/methods.md section 1.4)."""
    sparsify = row["seconds_compress_wait"]["median"]
    return row["seconds_compute"]["median"], sparsify, max(0.0, row["seconds_wait"]["median"] - sparsify)


def median_parts(runs: Sequence[dict[str, Any]]) -> list[float]:
    """The median of each part over the runs."""
    return [statistics.median(values) for values in zip(*map(parts, runs), strict=True)]


def _line(runs: Sequence[dict[str, Any]], dense: Sequence[dict[str, Any]] | None) -> str:
    first = runs[0]
    steps = [row["seconds_per_step"]["median"] for row in runs]
    step = statistics.median(steps)
    relative = "- | -"
    if dense is not None:
        full = statistics.median(row["seconds_per_step"]["median"] for row in dense)
        relative = f"{full / step:.2f} | {_bytes(runs) / _bytes(dense):.4f}"
    density = "-" if first["method"] == "none" else f"{first['density']:g}"
    shown = " | ".join(f"{value:.3f}" for value in median_parts(runs))
    counts = {row["groups"] for row in runs}
    groups = " - ".join(map(str, sorted({min(counts), max(counts)})))
    errors = [row["prediction_error"] for row in runs if row["prediction_error"] is not None]
    predicted = "- | -"
    if errors:
        seconds = statistics.median(row["predicted_seconds_per_step"] for row in runs)
        predicted = f"{seconds:.3f} | {statistics.median(errors):+.1%}"
    return (
        f"| {first['model']} | {first['rate']} | {first['method']} | {density} | {step:.3f} "
        f"| {min(steps):.3f} - {max(steps):.3f} | {shown} | {relative} | {groups} | {predicted} |"
    )


def _bytes(runs: Sequence[dict[str, Any]]) -> float:
    return float(statistics.median(row["bytes_sent_per_step"] + row["bytes_received_per_step"] for row in runs))


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """The stacked breakdown of every row, one panel for each model and rate."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    panels = list(dict.fromkeys((row["model"], row["rate"]) for row in rows))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.8), layout="constrained", squeeze=False)
    for (model, rate), axis in zip(panels, axes[0], strict=True):
        chosen = settings_of([row for row in rows if (row["model"], row["rate"]) == (model, rate)])
        names = [_label(runs[0]) for runs in chosen]
        below = [0.0] * len(chosen)
        for label, index in (("compute", 0), ("sparsify, not hidden", 1), ("communicate, not hidden", 2)):
            heights = [median_parts(runs)[index] for runs in chosen]
            axis.bar(names, heights, bottom=below, label=label)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axis.set(title=f"{model}, {rate}", ylabel="seconds per step")
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].legend()
    figure.savefig(picture, dpi=110)


def _label(row: dict[str, Any]) -> str:
    return "none" if row["method"] == "none" else f"{row['method']}\n{row['density']:g}"


def main() -> None:
    """Measure what the command line names, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet20,vgg16_cifar", help="comma-separated models of the zoo")
    parser.add_argument("--rates", default="100mbit,1gbit", help="comma-separated link rates")
    parser.add_argument("--methods", default="none,topk,lags,dlgs", help="comma-separated compression methods")
    parser.add_argument("--densities", default="0.1,0.01", help="comma-separated")
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--steps", type=int, default=20, help="steps after the measured ones")
    parser.add_argument("--calibration", type=int, default=8, help="steps that are measured to plan by, twice")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each setting, in turns with the others")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to every process")
    parser.add_argument("--json", type=Path, help="write the rows, after those that the file holds already")
    parser.add_argument(
        "--thresholds",
        choices=COMPUTE,
        help="compare thresholds by layer and by group; what gradients are computed by",
    )
    parser.add_argument("--compute", choices=COMPUTE, default="real", help="what gradients are computed by")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="write the methods of --json side by side, and end")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the rows of --json, measure nothing")
    options = parser.parse_args()
    rows = load_rows(options.json)
    if options.draw is not None:
        draw(rows, options.draw)
        print(table(rows))
        return
    if options.docs is not None:
        mark = f"{_MARK}, as printed" if any(row["method"] == _PRINTED for row in rows) else _MARK
        options.docs.write_text(in_page(options.docs.read_text(), mark, side_by_side(rows)))
        return
    if options.thresholds:
        done = [(row["model"], row["rate"], row["density"]) for row in rows if row["compute"] == options.thresholds]
        for cell in CELLS:
            if (
                cell.model in options.models.split(",")
                and cell.rate in options.rates.split(",")
                and cell[:3] not in done
            ):
                rows.append(measure_in_turns(cell, options.thresholds, _common(options.batch), options.set))
                print(told(rows[-1:]).splitlines()[-1], flush=True)
                save_rows(options.json, rows)
        print(told(rows))
        return
    for model, rate, method, density in _turns(options):
        rows.append(measure(model, rate, method, density, options))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        save_rows(options.json, rows)
    print(table(rows))


def _turns(options: argparse.Namespace) -> Iterator[tuple[str, str, str, float]]:
    """Model, rate, method and density of one run after another."""
    densities = [float(density) for density in options.densities.split(",")]
    for model, rate in itertools.product(options.models.split(","), options.rates.split(",")):
        for _ in range(options.rounds):
            for method in options.methods.split(","):
                for density in [1.0] if method == "none" else densities:
                    yield model, rate, method, density


if __name__ == "__main__":
    main()
