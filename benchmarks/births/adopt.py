"""Births for rows that have none, from the history: `python -m benchmarks adopt`.

The commit that brought a row stands for that of its code, which is at most as new. Nobody wrote down
its processor and load.

Examples:
  python -m benchmarks adopt
  python -m benchmarks adopt chaos --command "python -m benchmarks chaos --json benchmarks/results/chaos.json"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any

from benchmarks.births.birth import RESULTS, UNKNOWN, Birth, births_of, digests, save_births, unborn
from benchmarks.births.code import Checkout

__all__ = ["adopted", "main"]


def main() -> int:
    """Write the births that are missing; 1 where a row is in no commit yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="results; all of them without one")
    parser.add_argument("--command", default=UNKNOWN, help="that measured them")
    parser.add_argument("--load", default=UNKNOWN, help="of the machine meanwhile")
    options = parser.parse_args()
    checkout, left = Checkout(RESULTS.parents[1]), 0
    for path in sorted(RESULTS.glob("*.json")):
        births, result = births_of(path), json.loads(path.read_text())
        if (options.names and path.stem not in options.names) or not unborn(births, result):
            continue
        births += adopted(births, result, checkout.versions(path), options.command, options.load)
        save_births(path, births)
        lacking = unborn(births, result)
        print(
            f"{path.stem}: {lacking} rows are in no commit yet" if lacking else f"{path.stem}: all rows have a birth"
        )
        left += lacking
    return int(left > 0)


def adopted(
    births: list[Birth], result: Any, versions: Iterable[tuple[str, str, bytes]], command: str, load: str
) -> list[Birth]:
    """The births of rows that `births` do not name, each of the first of `versions`, oldest first, that has the row.

    `versions` are the commit, its day, and the file there.
    """
    wanted = set(digests(result)) - {row for birth in births for row in birth.rows}
    found: dict[tuple[str, str], list[str]] = {}
    for commit, day, text in versions:
        for row in digests(_json(text)):
            if row in wanted:
                wanted.remove(row)
                found.setdefault((commit, day), []).append(row)
    return [
        Birth(command, commit, day, UNKNOWN, load, "history", rows=tuple(rows))
        for (commit, day), rows in found.items()
    ]


def _json(text: bytes) -> Any:
    """The rows of a version; none where it is broken."""
    try:
        return json.loads(text)
    except ValueError:
        return []


if __name__ == "__main__":
    sys.exit(main())
