"""Rounds of the exchange under TLS beside rounds in plain text: `python -m benchmarks tls`.

ResNet-50's gradients and parameters through one server, between hosts that are network namespaces (see
`base.network`): by what `auto` takes under mutual TLS, by plain gRPC, and by what `auto` takes in plain text. Root
and iproute2 are needed. Starts of the three take turns, so that all meet the same disturbances. Prints one row for
each link rate, about four minutes for both; --json writes what was measured, and rows that it holds are not measured
again; --docs puts the table into a page, between its markers. --quick is one rate with few rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.exchange import exchange

__all__ = ["certificates", "compare", "table"]

_SIZE: Final = (1, 3)
_RATES: Final = "1gbit,10gbit"
_STARTS: Final = 3
_HEAD: Final = """\
| links | TLS s | TLS took | plain gRPC s | auto, plain s | auto took | TLS / gRPC | TLS / auto |
|---|---|---|---|---|---|---|---|"""
_PAGE: Final = "measured by benchmarks.exchange.tls"


def compare(rate: str, rounds: int, starts: int, certificates: Sequence[str]) -> dict[str, Any]:
    """The row of one rate: the seconds of all rounds of `starts` starts of each way."""
    plain = "--set=exchange.transport="
    ways = {"tls": [f"{plain}auto", *certificates], "grpc": [f"{plain}grpc"], "auto": [f"{plain}auto"]}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    paths: dict[str, list[str]] = {name: [] for name in ways}
    for start in range(starts):
        # Every way is the first one of some start.
        names = list(ways)
        for name in names[start % 3 :] + names[: start % 3]:
            measured = exchange.measure("resnet50", _SIZE, rate, rounds, ways[name])
            seconds[name] += measured["all_seconds"]["own"]
            paths[name].append(measured["path"])
    return {"rate": rate, "seconds": seconds, "paths": paths}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown: medians, and their ratios."""
    return "\n".join([_HEAD, *map(_row, rows)])


def _row(row: dict[str, Any]) -> str:
    tls, grpc, auto = (statistics.median(row["seconds"][name]) for name in ("tls", "grpc", "auto"))
    sealed, plain = (_took(row["paths"][name]) for name in ("tls", "auto"))
    cells = (row["rate"], f"{tls:.3f}", sealed, f"{grpc:.3f}", f"{auto:.3f}", plain)
    return f"| {' | '.join(cells)} | {tls / grpc:.2f} | {tls / auto:.2f} |"


def _took(paths: Sequence[str]) -> str:
    return " and ".join(sorted({"direct" if path == "tcp" else "gRPC" for path in paths}))


def certificates(folder: str) -> list[str]:
    """The settings that name certificates of the bench's members, which are made in `folder`."""
    servers, workers = _SIZE
    sizes = ["--servers", str(servers), "--workers", str(workers)]
    command = [sys.executable, "-P", "-m", "taihu", "certs", *sizes, "--out", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    files = {"ca": "ca.pem", "certificate": "{member}.pem", "key": "{member}-key.pem"}
    return [f"--set=security.{key}={Path(folder) / name}" for key, name in files.items()]


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=_RATES, help="comma-separated")
    parser.add_argument("--rounds", type=int, default=12, help="of each start")
    parser.add_argument("--starts", type=int, default=_STARTS, help="of each way")
    parser.add_argument("--quick", action="store_true", help="1gbit, three rounds, one start")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    rows = load_rows(options.json)
    rates, rounds, starts = options.rates.split(","), options.rounds, options.starts
    if options.quick:
        rates, rounds, starts = ["1gbit"], 3, 1
    with tempfile.TemporaryDirectory() as folder:
        given = certificates(folder)
        for rate in rates:
            if rate not in {row["rate"] for row in rows}:
                rows.append(compare(rate, rounds, starts, given))
                save_rows(options.json, rows)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
