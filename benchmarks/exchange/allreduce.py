"""Allreduce over shaped links, on loopback and in shared memory: `python -m benchmarks allreduce --help`.

Over shaped links every rank runs on a host of its own (see `base.network`). Prints one row for each setting
and, with --json, writes the rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.base.network import run_ranks
from benchmarks.base.rows import save_rows
from taihu.cli.planning.link_rate import parse_rate

__all__ = ["measure"]


def measure(  # noqa: PLR0917 - one of each
    rate: str, ranks: int, sizes: str, rounds: int, extra: list[str], path: str = "tcp"
) -> list[dict[str, Any]]:
    """Rows of all sizes; `rate` is that of the links, or `loopback` or `same-host`, both on this machine.

    `path` is what values between hosts take.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "taihu",
        "dev",
        "bench",
        "allreduce",
        "--sizes",
        sizes,
        "--ranks",
        str(ranks),
    ]
    command += ["--rounds", str(rounds), *extra]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        if rate in ("loopback", "same-host"):
            path = "tcp" if rate == "loopback" else rate
            subprocess.run([*command, "--path", path, "--json", str(result)], check=True, stdout=subprocess.DEVNULL)
        else:
            run_ranks([*command, "--path", path], ranks, parse_rate(rate), result)
        rows: list[dict[str, Any]] = json.loads(result.read_text())["rows"]
    return [{**row, "rate": rate} for row in rows]


def _row(result: dict[str, Any]) -> str:
    rate, bus = result["rate"], result["bus_bandwidth_bytes_per_second"]
    share = "-" if rate in ("loopback", "same-host") else f"{bus * 8 / parse_rate(rate):.3f}"
    seconds = result["seconds"]["median"]
    gloo = result.get("gloo_seconds")
    other = f"{gloo['median'] * 1e3:.2f} | {gloo['median'] / seconds:.2f}" if gloo else "- | -"
    return (
        f"| {rate} | {result['ranks']} | {result['megabytes']:g} | {seconds * 1e3:.2f} | {bus / 1e6:.0f} | {share} "
        f"| {other} |"
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,10gbit,loopback,same-host", help="comma-separated")
    parser.add_argument("--ranks", default="2,4", help="comma-separated")
    parser.add_argument("--sizes", default="10,60.97,244", help="megabytes, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", choices=["gloo"], help="passed on to the bench")
    parser.add_argument("--json", type=Path, help="write the rows, after those that the file holds already")
    options = parser.parse_args()
    extra = [] if options.against is None else [f"--against={options.against}"]
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())
    print("| links | ranks | MB | ms | bus MB/s | of the link | Gloo ms | Gloo / ours |")
    print("|---|---|---|---|---|---|---|---|")
    for rate in options.rates.split(","):
        for ranks in map(int, options.ranks.split(",")):
            measured = measure(rate, ranks, options.sizes, options.rounds, extra)
            print("\n".join(map(_row, measured)), flush=True)
            rows += measured
            save_rows(options.json, rows)


if __name__ == "__main__":
    main()
