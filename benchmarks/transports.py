"""gRPC's streams beside connections of their own, and what `auto` makes of them: `python -m benchmarks.transports`.

ResNet-50's gradients and parameters, between hosts that are network namespaces (see `benchmarks.network`): through
one server and two of them, and around a ring. Root and iproute2 are needed. Settings take turns, so that all meet the
same disturbances. Prints one row for each link rate and way of exchanging and, with --json, writes what was measured;
--quick is one rate with few rounds, to see that everything runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Final

from benchmarks import allreduce, exchange

__all__ = ["measure"]

_TRANSPORTS: Final = ("grpc", "tcp", "auto")
_RATES: Final = "100mbit,1gbit,2.5gbit,10gbit"
_MODEL: Final = "resnet50"
_MODEL_MB: Final = "102.228128"
"""25,557,032 values of fp32."""


def measure(ways: str, rate: str, transport: str, rounds: int) -> tuple[float, str]:
    """Median seconds of a round, and what values took; `ways` is `1+3` (servers and workers) or `ring of 4`."""
    if ways.startswith("ring of "):
        (row,) = allreduce.measure(rate, int(ways[8:]), _MODEL_MB, rounds, [], transport)
        return row["seconds"]["median"], row["path"]
    servers, workers = map(int, ways.split("+"))
    row = exchange.measure(_MODEL, (servers, workers), rate, rounds, [f"--set=exchange.transport={transport}"])
    return row["seconds_per_round"]["median"], row["path"]


def compare(ways: str, rate: str, rounds: int, repeats: int) -> dict[str, Any]:
    """All transports in turns, `repeats` times; medians of medians, and what `auto` took each time."""
    seconds: dict[str, list[float]] = {transport: [] for transport in _TRANSPORTS}
    chosen = []
    for _ in range(repeats):
        for transport in _TRANSPORTS:
            took, path = measure(ways, rate, transport, rounds)
            seconds[transport].append(took)
            if transport == "auto":
                chosen.append(path)
    medians = {transport: statistics.median(values) for transport, values in seconds.items()}
    better = min(medians["grpc"], medians["tcp"])
    return {
        "ways": ways,
        "rate": rate,
        "seconds": medians,
        "all_seconds": seconds,
        "auto_path": chosen,
        "auto_over_better": medians["auto"] / better,
    }


def _row(result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    return (
        f"| {result['rate']} | {result['ways']} | {seconds['grpc']:.3f} | {seconds['tcp']:.3f} "
        f"| {seconds['grpc'] / seconds['tcp']:.2f} | {seconds['auto']:.3f} | {', '.join(result['auto_path'])} "
        f"| {result['auto_over_better']:.3f} |"
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=_RATES, help="comma-separated")
    parser.add_argument("--ways", default="1+3,2+2,ring of 4", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="turns of all transports")
    parser.add_argument("--quick", action="store_true", help="1gbit, three rounds, one turn")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rates, rounds, repeats = options.rates, options.rounds, options.repeats
    if options.quick:
        rates, rounds, repeats = "1gbit", 3, 1
    rows = []
    print("| links | servers + workers | gRPC s | direct s | gRPC / direct | auto s | auto took | auto / better |")
    print("|---|---|---|---|---|---|---|---|")
    for rate in rates.split(","):
        for ways in options.ways.split(","):
            rows.append(compare(ways, rate, rounds if rate != "100mbit" else min(rounds, 3), repeats))
            print(_row(rows[-1]), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
