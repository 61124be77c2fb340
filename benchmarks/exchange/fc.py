"""Fully connected layers over shaped links: `python -m benchmarks fc --help`.

Every rank runs on a host of its own (see `base.network`). Compares the exchange of a layer's gradient around a
ring with that of activations between shards, measured and as the planner predicts from a probe of the links. Prints a
row for each setting and, with --json, writes it. The schemes of sharded layers: `exchange.fc_schemes`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.base.network import run_ranks
from benchmarks.base.rows import load_rows, save_rows
from taihu.cli.planning.link_rate import parse_rate

__all__ = ["measure"]

_VGG16 = "25088x4096,4096x4096,4096x1000"


def measure(rate: str, ranks: int, arguments: list[str]) -> list[dict[str, Any]]:
    """Rows of `taihu dev bench fc` between hosts whose links have this rate."""
    command = [sys.executable, "-P", "-m", "taihu", "dev", "bench", "fc", "--ranks", str(ranks), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        run_ranks(command, ranks, parse_rate(rate), result)
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


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit", help="comma-separated")
    parser.add_argument("--ranks", default="2,4,8", help="comma-separated")
    parser.add_argument("--layers", default=_VGG16, help="KxN, comma-separated")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,128", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows, after those that the file holds already")
    options = parser.parse_args()
    rows = load_rows(options.json)
    arguments = ["--layers", options.layers, "--batches", options.batches, "--rounds", str(options.rounds)]
    measured_and_predicted = "data ms | sharded ms | data / sharded | predicted | sharded"
    columns = f"{measured_and_predicted} | choice | faster | printed rule | bytes / lean"
    print(f"| links | layer | ranks | batch | {columns} |")
    print("|---" * (4 + columns.count("|") + 1) + "|")
    new: list[dict[str, Any]] = []
    for rate in options.rates.split(","):
        for ranks in map(int, options.ranks.split(",")):
            measured = measure(rate, ranks, arguments)
            print("\n".join(map(_exchange_row, measured)), flush=True)
            new += measured
            save_rows(options.json, [*rows, *new])
    right = sum(row["choice"] == row["winner"] for row in new)
    print(f"\nthe planner chose the faster one in {right} of {len(new)} cells")


if __name__ == "__main__":
    main()
