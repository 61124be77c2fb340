"""LAGS against global Top-K, where it is faster and why not elsewhere: `python -m benchmarks lags_and_topk --help`.

Claim 4 of the paper (docs/methods.md section 1.4), from the runs that `compression` wrote. LAGS sends each
layer as soon as it is ready: it hides communication behind backward, and pays for a message and an exact selection of
each layer, which show in the compute part of a step, because they take the processors that compute. *saved* is what
LAGS waits less for selection and communication than Top-K, *paid* what its steps compute longer. It wins where it
saves more than it pays: with so many messages at most, at what each of them costs here. Between the rates that were
measured, savings over pay are taken to fall as a power of the rate.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import load_rows
from benchmarks.compression.compression import median_parts, settings_of
from taihu.cli.planning.link_rate import parse_rate

__all__ = ["compare"]

_MEASURED: Final = Path("benchmarks/results/compression.json")

Cell = dict[str, Any]


def compare(rows: Sequence[dict[str, Any]]) -> list[Cell]:
    """A cell for each model, rate and density of which there are runs by both methods; times in seconds."""
    cells: list[Cell] = []
    runs = {(of[0]["model"], of[0]["rate"], of[0]["density"], of[0]["method"]): of for of in settings_of(rows)}
    for (model, rate, density, method), lags in runs.items():
        topk = runs.get((model, rate, density, "topk"))
        if method == "lags" and topk is not None:
            (computes, *waits), (computed, *waited) = median_parts(lags), median_parts(topk)
            selects, selected = (_median(each, "seconds_compress") for each in (lags, topk))
            cells.append(
                {
                    "model": model,
                    "rate": rate,
                    "density": density,
                    "messages": lags[0]["groups"],
                    "selects": selects / selected,
                    "saved": sum(waited) - sum(waits),
                    "paid": computes - computed,
                }
            )
    return cells


def _median(runs: Sequence[dict[str, Any]], part: str) -> float:
    values = sorted(row[part]["median"] for row in runs)
    return float(values[len(values) // 2])


def turning_rate(slower: Cell, faster: Cell) -> str:
    """The rate at which both methods take as long, where what LAGS saves goes under what it pays."""
    gains = [cell["saved"] / cell["paid"] for cell in (slower, faster)]
    if not gains[0] > 1 > gains[1] > 0:
        winners = ["LAGS" if gain > 1 else "Top-K" for gain in gains]
        return f"{winners[0]} at {slower['rate']}, {winners[1]} at {faster['rate']}"
    rates = [math.log(parse_rate(cell["rate"])) for cell in (slower, faster)]
    at = rates[0] + (rates[1] - rates[0]) * math.log(gains[0]) / math.log(gains[0] / gains[1])
    return f"LAGS up to {math.exp(at) / 1e6:.0f} Mbit/s"


def table(cells: Sequence[Cell]) -> str:
    """The cells as Markdown."""
    lines = [
        "| model | links | density | messages | selection, LAGS / Top-K | saved, ms | paid, ms | a message, ms "
        "| LAGS wins up to | faster |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        each = cell["paid"] / cell["messages"]
        most = f"{max(0.0, cell['saved'] / each):.0f} messages" if each > 0 else "-"
        lines.append(
            f"| {cell['model']} | {cell['rate']} | {cell['density']:g} | {cell['messages']} | {cell['selects']:.2f} "
            f"| {1e3 * cell['saved']:.1f} | {1e3 * cell['paid']:.1f} | {1e3 * each:.2f} | {most} "
            f"| {'LAGS' if cell['saved'] > cell['paid'] else 'Top-K'} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print what the runs say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=_MEASURED, help="what was measured")
    options = parser.parse_args()
    cells = compare(load_rows(options.json))
    print(table(cells))
    print()
    for slower in cells:
        for faster in cells:
            same = all(slower[key] == faster[key] for key in ("model", "density"))
            if same and parse_rate(slower["rate"]) < parse_rate(faster["rate"]):
                print(f"{slower['model']}, density {slower['density']:g}: {turning_rate(slower, faster)}")


if __name__ == "__main__":
    main()
