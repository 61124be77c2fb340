"""gRPC's streams beside connections of their own, and what `auto` makes of them: `python -m benchmarks transports`.

A model's gradients and parameters, between hosts that are network namespaces (see `base.network`): through one
server, through two, and around a ring. Root and iproute2 are needed. ResNet-50, of which a round would take half a
minute at 100 Mbit/s: there it is ResNet-20. In each of a few starts `auto` chooses first, as in a training; then its
rounds and those by gRPC and by connections take turns, so that all meet the same disturbances. Prints one row for
each link rate and way, which takes about four minutes; --json writes what was measured, and rows that it holds are
not measured again; --docs puts the table into a page, between its markers. --quick is one rate with few rounds, to
see that everything runs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import in_page, load_rows, save_rows
from benchmarks.exchange import exchange

__all__ = ["table"]

_ROUNDS: Final = {"100mbit": 12, "1gbit": 16, "2.5gbit": 32, "10gbit": 32}
_WAYS: Final = {"1+3": (1, 3), "2+2": (2, 2), "ring of 4": (0, 4)}
_HEAD: Final = """\
| links | model | servers + workers | gRPC s | direct s | auto took | auto s | auto / better |
|---|---|---|---|---|---|---|---|"""
_PAGE: Final = "measured by benchmarks.exchange.transports"


def compare(ways: str, rate: str, rounds: int, starts: int) -> dict[str, Any]:
    """The row of one way and rate, out of all rounds of `starts` starts."""
    model = "resnet20" if rate == "100mbit" else "resnet50"
    seconds: dict[str, list[float]] = {"grpc": [], "tcp": [], "own": []}
    took, trials = [], []
    for _ in range(starts):
        extra = ["--set=exchange.transport=auto", "--against=grpc,tcp"]
        measured = exchange.measure(model, _WAYS[ways], rate, rounds, extra)
        took.append(measured["path"])
        trials.append(measured["trial"])
        for name, values in measured["all_seconds"].items():
            seconds[name] += values
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "rate": rate,
        "model": model,
        "ways": ways,
        "rounds": len(seconds["own"]),
        "quartiles": {name: _quartiles(values) for name, values in seconds.items()},
        "auto_took": took,
        "auto_over_better": medians["own"] / min(medians["grpc"], medians["tcp"]),
        "seconds": seconds,
        "trials": trials,
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in statistics.quantiles(values, n=4, method="inclusive")]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, by their medians."""
    return "\n".join([_HEAD, *map(_row, rows)])


def _row(row: dict[str, Any]) -> str:
    grpc, tcp, own = (row["quartiles"][name][1] for name in ("grpc", "tcp", "own"))
    took = " and ".join(sorted({"direct" if path == "tcp" else "gRPC" for path in row["auto_took"]}))
    return (
        f"| {row['rate']} | {row['model']} | {row['ways']} | {grpc:.3f} | {tcp:.3f} "
        f"| {took} | {own:.3f} | {row['auto_over_better']:.3f} |"
    )


def _measure_missing(
    rates: Sequence[str], ways: Sequence[str], rows: Sequence[dict[str, Any]], *, quick: bool
) -> Iterator[dict[str, Any]]:
    """The rows of all rates and ways that are not among `rows`."""
    known = {(row["rate"], row["ways"]) for row in rows}
    for rate, way in itertools.product(rates, ways):
        if (rate, way) not in known:
            rounds, starts = (4, 1) if quick else (_ROUNDS.get(rate, 8), 2)
            yield compare(way, rate, rounds, starts)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=",".join(_ROUNDS), help="comma-separated")
    parser.add_argument("--ways", default=",".join(_WAYS), help="comma-separated")
    parser.add_argument("--quick", action="store_true", help="1gbit, four rounds, one start")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    rows = load_rows(options.json)
    print(table(rows), flush=True)
    rates = ["1gbit"] if options.quick else options.rates.split(",")
    for row in _measure_missing(rates, options.ways.split(","), list(rows), quick=options.quick):
        rows.append(row)
        print(_row(row), flush=True)
        save_rows(options.json, rows)
        if options.docs is not None:
            options.docs.write_text(in_page(options.docs.read_text(), _PAGE, table(rows)))


if __name__ == "__main__":
    main()
