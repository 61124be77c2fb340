"""Schemes of spread layers between hosts (docs/methods.md section 4): `python -m benchmarks fc_schemes --help`.

Every rank runs on a host of its own (see `base.network`; needs root). A fully connected layer, of which each
worker has `--columns` columns, goes through forward, backward and all transfers by `gather`, `turns` and `slices` in
turns of one run. Where the ranks share a machine with few processors, products are modelled: they take as long as on
a processor of `--gflops` for each rank, and are waited for, not computed; links and processors may so be slowed down
alike. Then every scheme runs without products too, which is what its transfers take alone. With `--gflops computed`
products are computed.

*in hidden* is the share of the time of the transfers of features to the layer that no rank waited for. Prints a row
for each setting; --json writes the rows and leaves out those that the file holds, --docs puts the table into a page,
between its markers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.base.network import run_ranks
from benchmarks.base.rows import in_page, load_rows, save_rows
from taihu.cli.planning.link_rate import parse_rate

__all__ = ["SOURCE", "Setting", "growth", "measure", "table", "transfers_over_products"]

SOURCE: Final = "measured by benchmarks.exchange.fc_schemes"
_HEAD: Final = (
    "| links | workers | GFLOP/s | `gather`: step ms, transfers / products | `turns`: / gather, transfers / "
    "products, in hidden | `slices`: the same | (P - 1)/P |"
)
_SCHEMES: Final = ("gather", "turns", "slices")


@dataclass(frozen=True)
class Setting:
    """One run of all schemes; without `gflops` products are computed."""

    rate: str
    ranks: int
    gflops: float | None
    inputs: int
    outputs: int
    batch: int

    def is_of(self, row: dict[str, Any]) -> bool:
        """Whether it led to a row."""
        return all(row.get(key) == value for key, value in asdict(self).items())


def measure(setting: Setting, rounds: int, trace: Path | None = None) -> list[dict[str, Any]]:
    """The rows of `taihu dev bench fc --compute` between hosts, one for each scheme."""
    command = [sys.executable, "-P", "-m", "taihu", "dev", "bench", "fc", "--compute", "--ranks", str(setting.ranks)]
    command += ["--layers", f"{setting.inputs}x{setting.outputs}", "--batches", str(setting.batch)]
    command += ["--rounds", str(rounds)]
    command += [] if setting.gflops is None else ["--gflops", str(setting.gflops)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        traced = ["--trace", str(trace.absolute())] if trace is not None else []
        run_ranks(command, setting.ranks, parse_rate(setting.rate), result, first=traced)
        rows: list[dict[str, Any]] = json.loads(result.read_text())["rows"]
    return [{**row, **asdict(setting)} for row in rows]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, a line for each setting."""
    settings: dict[tuple[object, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        settings.setdefault(_key(row), {})[row["scheme"]] = row
    lines = [_line(schemes) for schemes in settings.values()]
    return "\n".join([_HEAD, "|---" * (_HEAD.count("|") - 1) + "|", *lines])


def growth(rows: Sequence[dict[str, Any]]) -> str:
    """By scheme and speed of products, how transfers over products grow with the workers; nothing without any."""
    modelled = [row for row in rows if row.get("gflops")]
    lines = []
    for rate, gflops, scheme in dict.fromkeys((row["rate"], row["gflops"], row["scheme"]) for row in modelled):
        own = [row for row in modelled if (row["rate"], row["gflops"], row["scheme"]) == (rate, gflops, scheme)]
        ratios = ", ".join(f"{transfers_over_products(row):.2f}" for row in own)
        workers = ", ".join(str(row["ranks"]) for row in own)
        lines.append(f"{scheme} at {gflops:g} GFLOP/s, {rate}: transfers / products {ratios} with {workers} workers")
    return "\n".join(lines)


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row.get(name) for name in Setting.__dataclass_fields__)


def transfers_over_products(row: dict[str, Any]) -> float:
    """The time of a step without products over that of its products, which are modelled."""
    return float(row["transfers_seconds"]["median"] / row["products_seconds"])


def _line(schemes: dict[str, dict[str, Any]]) -> str:
    gather = schemes["gather"]
    seconds, ranks = gather["seconds"]["median"], gather["ranks"]
    cells = [gather["rate"], str(ranks), f"{gather['gflops']:g}" if gather.get("gflops") else "computed"]
    cells.append(f"{seconds * 1e3:.0f}, {_transfers(gather)}")
    for row in (schemes[name] for name in _SCHEMES if name != "gather"):
        hidden = f"{row['hidden_in_ratio']:.3f}" if "hidden_in_ratio" in row else "-"
        cells.append(f"{row['seconds']['median'] / seconds:.3f}, {_transfers(row)}, {hidden}")
    return f"| {' | '.join(cells)} | {(ranks - 1) / ranks:.3f} |"


def _transfers(row: dict[str, Any]) -> str:
    return f"{transfers_over_products(row):.2f}" if row.get("gflops") else "-"


def _settings(options: argparse.Namespace) -> Iterator[Setting]:
    speeds = [None if each == "computed" else float(each) for each in options.gflops.split(",")]
    for rate, gflops, ranks in product(options.rates.split(","), speeds, map(int, options.ranks.split(","))):
        yield Setting(rate, ranks, gflops, options.inputs, options.columns * ranks, options.batch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100mbit", help="of links, comma-separated")
    parser.add_argument("--ranks", default="2,4,8", help="numbers of workers, comma-separated")
    parser.add_argument("--gflops", default="0.6,2.4", help="of a worker's processor, comma-separated, or computed")
    parser.add_argument("--inputs", type=int, default=9216, help="of the layer")
    parser.add_argument("--columns", type=int, default=512, help="outputs of the layer for each worker")
    parser.add_argument("--batch", type=int, default=16, help="examples of each worker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", type=Path, help="write rank 0's transfers of the last setting for Perfetto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path)
    return parser


def main() -> None:
    """Measure what the command line names."""
    options = _parser().parse_args()
    rows = load_rows(options.json)
    for setting in _settings(options):
        if any(setting.is_of(row) for row in rows):
            continue
        measured = measure(setting, options.rounds, options.trace)
        print(table(measured).partition("\n")[2].partition("\n")[2], flush=True)
        rows += measured
        save_rows(options.json, rows)
    print(f"{table(rows)}\n\n{growth(rows)}")
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), SOURCE, table(rows)))


if __name__ == "__main__":
    main()
