"""The papers' claims beside what was measured here: `python -m benchmarks claims --help`.

The claims are those numbered in docs/methods.md, section by section. Figures of ours come from the files in docs/
that benchmarks wrote, so that the table follows what is measured next; those without a file were read off the command
that stands beside them. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.base.rows import in_page
from benchmarks.compression import compression, lags_and_topk
from benchmarks.compression.compression import settings_of
from benchmarks.exchange import fc_schemes, ps_and_ring, three_ways
from benchmarks.learning import fc_batch
from benchmarks.planning import figures

__all__ = ["CLAIMS", "Claim", "table"]

_PAGE = "made by benchmarks.planning.claims"
_MISSING = "not measured"

Rows = Sequence[dict[str, Any]]


class Measured:
    """The contents of benchmarks/results/NAME.json, by name; empty where there is no such file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Any:
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else []


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: its section and number in docs/methods.md, its value there, ours, and how that was had.

    `ours` tells it from what was measured; `shown` are commands, files and tests.
    """

    section: str
    number: int
    printed: str
    ours: Callable[[Measured], str]
    shown: str


def _told(text: str) -> Callable[[Measured], str]:
    return lambda measured: text


def _speed_ups(measured: Measured) -> str:
    """A batch of everything over one by DLGS, with thresholds by layer."""
    batches = {(row["model"], row["rate"], row["way"]): row["batch_seconds"] for row in measured["few_bits"]}
    gains = [
        f"{batches[model, rate, 'dense'] / seconds:.1f} ({model}, {rate})"
        for (model, rate, way), seconds in batches.items()
        if way == "dlgs 0.01"
    ]
    return ", ".join(gains) or _MISSING


def _fastest(measured: Measured) -> str:
    """The cells in which DLGS is the fastest of three, and its gain over the next one for VGG-16."""
    gains = [
        (model, min(steps["topk"], steps["lags"]) / steps["dlgs"])
        for (_, model, _, _), steps in compression.steps_by_cell(measured["methods_in_cells"]).items()
        if steps.keys() >= {"topk", "lags", "dlgs"}
    ]
    vgg = [gain for model, gain in gains if model == "vgg16_cifar"]
    if not vgg:
        return _MISSING
    won = f"in {sum(gain > 1 for _, gain in gains)} of {len(gains)} cells of sparse methods"
    return f"{won}, {min(vgg):.3f} to {max(vgg):.3f} times the next one's speed for vgg16_cifar"


def _accuracy(measured: Measured) -> str:
    told = []
    cells = measured["accuracy_by_method"]
    for model, density in product(("cifar10_quick", "resnet20"), (0.1, 0.01)):
        of = partial(_mean_accuracy, cells, model, density)
        means = (of("dlgs", "layer"), of("lags", "layer"), of("topk", "layer"))
        told.append(
            f"{model} at {density:g} {', '.join(means)}, {_mean_accuracy(cells, model, 1.0, 'none', 'layer')}"
        )
    return f"DLGS, LAGS, Top-K, everything: {'; '.join(told)}"


def _mean_accuracy(cells: Rows, model: str, density: float, method: str, threshold: str) -> str:
    chosen = (model, density, method, threshold, False)
    keys = ("model", "density", "method", "threshold", "falls")
    found = [100 * cell["test_accuracy"] for cell in cells if tuple(cell[key] for key in keys) == chosen]
    return f"{fmean(found):.2f}" if found else _MISSING


def _lags(measured: Measured) -> str:
    cells = lags_and_topk.compare(measured["compression"])
    longer, faster = sum(cell["selects"] > 1 for cell in cells), sum(cell["saved"] > cell["paid"] for cell in cells)
    return f"selects for longer in {longer} of {len(cells)} cells, is faster in {faster}"


def _drift(measured: Measured) -> str:
    told = []
    for density in (0.1, 0.01):
        units = [
            unit
            for cell in measured["accuracy_by_method"]
            if (cell["method"], cell["threshold"], cell["density"]) == ("dlgs", "layer", density)
            for unit in cell["thresholds"]
            if unit["refreshes"]
        ]
        drifts = [unit["median_drift"] for unit in units]
        each = sum(unit["updates"] for unit in units) / sum(unit["refreshes"] for unit in units)
        told.append(f"at {density:g} {min(drifts):.1%} to {max(drifts):.1%} by layer, anew after {each:.1f} updates")
    return "medians of dH/H: " + "; ".join(told)


def _breakdown(measured: Measured) -> str:
    return f"{len(settings_of(measured['compression']))} settings, compute, sparsify and communicate each"


def _three_ways(measured: Measured) -> str:
    rows = measured["three_ways"]
    means: dict[str, list[float]] = {}
    for row in rows:
        if three_ways.WAYS[row["way"]].as_bits_of is None:
            means.setdefault(row["way"], []).append(100 * row["test_accuracy"])
    if len(means) < 3:
        return _MISSING
    alone = fmean(means["one node"])
    told = [f"{fmean(values) - alone:+.2f} ({way})" for way, values in means.items() if way != "one node"]
    seeds = len(means["one node"])
    return f"{', '.join(told)}, of {alone:.2f} %, {seeds} seed{'s' * (seeds > 1)}, Cifar10-quick on Fashion-MNIST"


def _servers_over_ring(measured: Measured) -> str:
    modelled = (("alexnet", 256), ("googlenet", 32), ("resnet50", 32))
    ratios = (f"{ps_and_ring.paper_ratio(*each):.0f}" for each in modelled)
    rows = sorted(
        (row for row in measured["ps_and_ring"] if row["rate"] == "1gbit"), key=lambda row: int(row["workers"])
    )
    told: list[str] = []
    workers: set[str] = set()
    for way, name in (("one_server", "merged"), ("blobs", "a message a blob"), ("waiting", "one at a time")):
        most = {row["model"]: row for row in rows if way in row}
        shown = [f"{row[way]['median'] / row['ring']['median']:.1f}" for row in most.values()]
        told.append(f"{name} {', '.join(shown) or _MISSING}")
        workers |= {str(row["workers"]) for row in most.values()}
    where = f"at 1 Gbit/s with {' or '.join(sorted(workers))} workers"
    return f"by the model {', '.join(ratios)}; {where} {'; '.join(told)}"


def _allreduce(measured: Measured) -> str:
    slow, fast = (ps_and_ring.allreduce_ratio(rate) for rate in (1e9, 2e9))
    alone = ps_and_ring.allreduce_ratio(None)
    rows = [row for row in measured["allreduce"] if row["rate"] == "10gbit" and "gloo_seconds" in row]
    ours = [row["gloo_seconds"]["median"] / row["seconds"]["median"] for row in rows]
    return (
        f"by the model {alone:.1f} by bytes alone, {fast:.1f} and {slow:.1f} with additions at 2 and 1 GB/s; "
        f"measured against Gloo at 10 Gbit/s {min(ours):.2f} to {max(ours):.2f}"
    )


def _columns(inputs: int, outputs: int, measured: Measured) -> str:
    rows = [row for row in measured["fc"] if (row["inputs"], row["outputs"]) == (inputs, outputs)]
    won = [row for row in rows if row["winner"] == "shard"]
    most = max(row["data_seconds"]["median"] / row["shard_seconds"]["median"] for row in rows)
    lost = [f"P = {row['ranks']}, M = {row['batch']}" for row in rows if row["winner"] != "shard"]
    but = f" (not {'; '.join(lost)})" if lost else ""
    return f"measured at 1 Gbit/s in {len(won)} of {len(rows)}{but}, by up to {most:.0f}"


def _convergence(measured: Measured) -> str:
    curves = measured["fc_convergence"]
    return ", ".join(f"{way} {100 * curve[-1]['test_accuracy']:.2f} %" for way, curve in curves.items())


def _hidden(measured: Measured) -> str:
    told = [
        f"{row['hidden_in_ratio']:.2f} with K = {row['ranks']} ({1 - 1 / row['ranks']:.2f})"
        for row in _modelled(measured, "turns")
    ]
    return "; ".join(told) or _MISSING


def _constant(measured: Measured) -> str:
    told = [
        f"{fc_schemes.transfers_over_products(row):.2f} with K = {row['ranks']}"
        for row in _modelled(measured, "slices")
    ]
    return ", ".join(told) or _MISSING


def _modelled(measured: Measured, scheme: str) -> Rows:
    """The rows of a scheme with modelled products, at the lowest speed."""
    rows = [row for row in measured["fc_schemes"] if row["scheme"] == scheme and row.get("gflops")]
    return [row for row in rows if row["gflops"] == min(each["gflops"] for each in rows)]


def _minima(measured: Measured) -> str:
    best = fc_batch.by_batch(measured["fc_batch"])
    return ", ".join(f"{mean:.2f} % by {size} examples" for size, mean in best.items()) or _MISSING


def _zero_volume(measured: Measured) -> str:
    rows = [row for row in measured["zero_times"] if not row["live_bytes"]]
    moved = {(row["exchange"], row["zero"]): row["bytes_per_step"] for row in rows}
    ratios = [f"{moved[way, 3] / moved[way, 2]:.2f} ({way})" for way in ("server", "ring")]
    return f"stage 3 over stage 2: {', '.join(ratios)}: parameters for which there is room stay"


def _zero_memory(measured: Measured) -> str:
    errors = [abs(row["worker"]["error"]) for row in measured["zero_memory"] if row.get("server")]
    return f"54 of 54 cells; workers behind servers within {max(errors):.1%} of what is planned"


def _larger_batches(measured: Measured) -> str:
    rows = measured["larger_batches"]
    first = {row["zero"]: row for row in reversed(rows)}
    told = []
    for zero, one in sorted(first.items()):
        last = max((row for row in rows if row["zero"] == zero), key=lambda row: int(row["workers"]))
        gain = last["samples_per_second"] / one["samples_per_second"]
        told.append(f"stage {zero}: {gain:.1f} times for {last['workers'] / one['workers']:.0f} times the workers")
    return "; ".join(told) or _MISSING


_FC = "`python -m benchmarks fc --rates 1gbit --json benchmarks/results/fc.json`, `tests/planner/test_fc_mode.py`"
CLAIMS: Sequence[Claim] = (
    Claim(
        "1.4",
        1,
        "up to 1.99 times",
        _speed_ups,
        "`python -m benchmarks few_bits --json benchmarks/results/few_bits.json`",
    ),
    Claim(
        "1.4",
        2,
        "near it, and above both",
        _accuracy,
        "`python -m benchmarks accuracy_by_method --json benchmarks/results/accuracy_by_method.json`",
    ),
    Claim(
        "1.4",
        3,
        "the fastest, by little on VGG16",
        _fastest,
        "`python -m benchmarks compression --batch 8 --json benchmarks/results/methods_in_cells.json`",
    ),
    Claim("1.4", 4, "longer, and faster", _lags, "`python -m benchmarks lags_and_topk`"),
    Claim(
        "1.4",
        5,
        "little",
        _drift,
        "`python -m benchmarks accuracy_by_method --json benchmarks/results/accuracy_by_method.json`",
    ),
    Claim(
        "1.4",
        6,
        "stacked bars",
        _breakdown,
        "`python -m benchmarks compression --json benchmarks/results/compression.json --draw docs/compression.png`",
    ),
    Claim(
        "2",
        1,
        "-0.1 % and -0.2 %",
        _three_ways,
        "`python -m benchmarks three_ways --json benchmarks/results/three_ways.json`",
    ),
    Claim(
        "2",
        2,
        "10, 77, 98",
        _servers_over_ring,
        "`python -m benchmarks ps_and_ring --json benchmarks/results/ps_and_ring.json`",
    ),
    Claim(
        "2",
        3,
        "2.3 to 4.1",
        _allreduce,
        "`python -m benchmarks allreduce --against gloo --json benchmarks/results/allreduce.json`",
    ),
    Claim("3", 1, "in 24 of 24 cells, by up to 33", partial(_columns, 25088, 4096), _FC),
    Claim("3", 2, "in 23 of 24 cells, by up to 6", partial(_columns, 4096, 4096), _FC),
    Claim("3", 3, "in 8 of 24 cells", partial(_columns, 4096, 1000), _FC),
    Claim(
        "3",
        4,
        "alike",
        _convergence,
        "`python -m benchmarks convergence --json benchmarks/results/fc_convergence.json --draw "
        "docs/fc_convergence.png`",
    ),
    Claim("3", 5, "equal", _told("to rounding, every scheme, 1 to 4 workers"), "`tests/worker/test_fc_hybrid.py`"),
    Claim(
        "4", 1, "(K - 1)/K", _hidden, "`python -m benchmarks fc_schemes --json benchmarks/results/fc_schemes.json`"
    ),
    Claim(
        "4", 2, "better minima", _minima, "`python -m benchmarks fc_batch --json benchmarks/results/fc_batch.json`"
    ),
    Claim(
        "4",
        3,
        "90 to 95 % and 5 %",
        _told("AlexNet 91.5 % of the products and 3.8 % of the parameters, VGG-16 99.2 % and 10.6 %"),
        "`taihu dev bench sw26010 --model alexnet`, `taihu dev bench sw26010 --model vgg16`",
    ),
    Claim(
        "4", 4, "constant", _constant, "`python -m benchmarks fc_schemes --json benchmarks/results/fc_schemes.json`"
    ),
    Claim(
        "5",
        1,
        "54 cells",
        _zero_memory,
        "`tests/planner/test_memory.py`, `python -m benchmarks memory --json benchmarks/results/zero_memory.json`",
    ),
    Claim(
        "5",
        2,
        "1, and 1.5 in stage 3",
        _zero_volume,
        "`python -m benchmarks zero --json benchmarks/results/zero_times.json`",
    ),
    Claim(
        "5",
        3,
        "the square root, 4/3",
        _told("0.31 to 0.76 of the bytes, 1.16 to 1.25 of the time, three small models"),
        "`python -m benchmarks recompute`",
    ),
    Claim(
        "5",
        4,
        "less than 10 %",
        _told(
            "8.3 %: of a transformer's layer 12 b s h (P - 1) / P move, and b s h (P - 1) / P more with it, counted"
        ),
        "`tests/worker/test_partitioned_activations.py`",
    ),
    Claim(
        "5",
        5,
        "more than linear",
        _larger_batches,
        "`python -m benchmarks larger_batches --json benchmarks/results/larger_batches.json`",
    ),
    Claim(
        "6",
        1,
        "708 to 1498 GF, median 1285",
        _told("861 to 1394 GF, median 1268 by its loop; 1060 to 1862, median 1401 by the printed rule"),
        "`taihu dev bench sw26010 --kernel conv --grid swdnn`",
    ),
    Claim(
        "6",
        2,
        "over 1.6 TF",
        _told("1.54 TF at most with a batch of 128, 1.86 TF among the 172"),
        "`taihu dev bench sw26010 --kernel conv --grid paper`",
    ),
    Claim("6", 3, "88.7 to 95 %", _told("88.6 to 91.8 % from 4096 on"), "`taihu dev bench sw26010 --kernel dgemm`"),
)


def table(measured: Measured) -> str:
    """All claims as Markdown."""
    lines = ["| claim | printed | here | simulated: of | away by | shown by |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *(_line(claim, measured) for claim in CLAIMS)])


def _line(claim: Claim, measured: Measured) -> str:
    """A claim's row; what the simulator says of it stands before what was measured."""
    here, shown = claim.ours(measured), claim.shown
    basis, away = figures.deviations(measured["figures"], claim.section, claim.number)
    simulated = figures.simulated(measured["figures"], claim.section, claim.number)
    if simulated is not None:
        name, told = simulated
        here, shown = f"simulated {told}; {here}", f"`taihu simulate figure {name}`, {shown}"
    return f"| {claim.section}, {claim.number} | {claim.printed} | {here} | {basis} | {away} | {shown} |"


def main() -> None:
    """Print the table, or put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--from", type=Path, dest="folder", default=Path("benchmarks/results"), help="the folder of measurements"
    )
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    text = table(Measured(options.folder))
    print(text)
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), _PAGE, text))


if __name__ == "__main__":
    main()
