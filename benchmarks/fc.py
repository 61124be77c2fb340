"""Fully connected layers over shaped links: `python -m benchmarks.fc --help`.

Every rank runs on a host of its own (see `benchmarks.network`). Compares the exchange of a layer's gradient around a
ring with that of activations between shards, measured and as the planner predicts from a probe of the links; with
--compute, the schemes of sharded layers with each other. Prints a row for each setting and, with --json, writes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.network import run_ranks
from taihu.cli.link_rate import parse_rate

__all__ = ["measure"]

_VGG16 = "25088x4096,4096x4096,4096x1000"


def measure(rate: str, ranks: int, arguments: list[str], trace: Path | None = None) -> list[dict[str, Any]]:
    """Rows of `taihu bench fc` between hosts whose links have this rate."""
    command = [sys.executable, "-P", "-m", "taihu", "bench", "fc", "--ranks", str(ranks), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        traced = ["--trace", str(trace.absolute())] if trace is not None else []
        run_ranks(command, ranks, parse_rate(rate), result, first=traced)
        rows: list[dict[str, Any]] = json.loads(result.read_text())["rows"]
    return [{**row, "rate": rate} for row in rows]


def _layer(row: dict[str, Any]) -> str:
    return f"| {row['rate']} | {row['inputs']} x {row['outputs']} | {row['ranks']} | {row['batch']}"


def _exchange_row(row: dict[str, Any]) -> str:
    data, shard = row["data_seconds"]["median"], row["shard_seconds"]["median"]
    predicted = f"{row['predicted_data_seconds'] * 1e3:.1f} | {row['predicted_shard_seconds'] * 1e3:.1f}"
    bytes_ratio = row["bytes_sent"] / row["lean_bytes"]
    return (
        f"{_layer(row)} | {data * 1e3:.1f} | {shard * 1e3:.1f} | {data / shard:.2f} | {predicted} | {row['choice']} "
        f"| {row['winner']} | {row['rule']} | {bytes_ratio:.3f} |"
    )


def _scheme_row(row: dict[str, Any], gather: float) -> str:
    seconds = row["seconds"]
    spread = f"{seconds['min'] * 1e3:.0f} - {seconds['max'] * 1e3:.0f}"
    median = seconds["median"]
    return (
        f"{_layer(row)} | {row['scheme']} | {median * 1e3:.1f} | {spread} | {median / gather:.3f} "
        f"| {row['hidden_ratio']:.2f} |"
    )


def _tell(rows: list[dict[str, Any]]) -> None:
    if "scheme" not in rows[0]:
        print("\n".join(map(_exchange_row, rows)), flush=True)
        return
    gathers = {row["batch"]: row["seconds"]["median"] for row in rows if row["scheme"] == "gather"}
    print("\n".join(_scheme_row(row, gathers[row["batch"]]) for row in rows), flush=True)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit", help="comma-separated")
    parser.add_argument("--ranks", default="2,4,8", help="comma-separated")
    parser.add_argument("--layers", default=_VGG16, help="KxN, comma-separated")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,128", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compute", action="store_true", help="compare the schemes, with compute")
    parser.add_argument("--trace", type=Path, help="with --compute: write rank 0's transfers for Perfetto")
    parser.add_argument("--json", type=Path, help="write the rows, after those that the file holds already")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())
    arguments = ["--layers", options.layers, "--batches", options.batches, "--rounds", str(options.rounds)]
    arguments += ["--compute"] if options.compute else []
    measured_and_predicted = "data ms | sharded ms | data / sharded | predicted | sharded"
    columns = f"{measured_and_predicted} | choice | faster | printed rule | bytes / lean"
    if options.compute:
        columns = "scheme | ms | of runs | / gather | transfers hidden"
    print(f"| links | layer | ranks | batch | {columns} |")
    print("|---" * (4 + columns.count("|") + 1) + "|")
    new: list[dict[str, Any]] = []
    for rate in options.rates.split(","):
        for ranks in map(int, options.ranks.split(",")):
            measured = measure(rate, ranks, arguments, options.trace)
            _tell(measured)
            new += measured
            if options.json is not None:
                options.json.write_text(json.dumps(rows + new, indent=1) + "\n")
    if not options.compute:
        right = sum(row["choice"] == row["winner"] for row in new)
        print(f"\nthe planner chose the faster one in {right} of {len(new)} cells")


if __name__ == "__main__":
    main()
