"""Figures that were measured with other code than today's: `python -m benchmarks stale`.

Compares the commit of each row's birth with the files here, below the paths of benchmarks/results/paths.toml; in
Python words about code do not count. `--fail` ends with 1 where the README or the front page shows one of them.
Benchmarks measure the rows that their file lacks: `--drop` takes the stale ones out of it.

Examples:
  python -m benchmarks stale
  python -m benchmarks stale torch_loops chaos
  python -m benchmarks stale --shown --fail
  python -m benchmarks stale --drop torch_curves
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.base.rows import in_lines
from benchmarks.births.birth import RESULTS, Birth, births_of, save_births, unborn, without
from benchmarks.births.code import Checkout
from benchmarks.births.judging import Stale, judged, shown_results
from benchmarks.births.paths import measured_paths

__all__ = ["main"]

_ROOT: Final = RESULTS.parents[1]
_FRONT: Final = ("README.md", "docs/index.md")


def main() -> int:
    """Tell what is stale; 1 where `--fail` is given, and the front pages show such a figure or a row has no birth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="results; all of them without one")
    parser.add_argument("--shown", action="store_true", help="those alone that README and front page show")
    parser.add_argument("--fail", action="store_true", help="end with 1 where README or front page shows a stale one")
    parser.add_argument("--drop", action="store_true", help="take the stale rows of NAMEs out of their files")
    options = parser.parse_args()
    files = {path.stem: path for path in sorted(RESULTS.glob("*.json"))}
    births = {name: births_of(path) for name, path in files.items()}
    shown = shown_results((_ROOT / page for page in _FRONT if (_ROOT / page).exists()), births)
    names = [name for name in options.names or files if not options.shown or name in shown]
    if options.drop and not options.names:
        parser.error("--drop needs the names of results")
    for name in options.names:
        if name not in files:
            parser.error(f"{name}: no such result in benchmarks/results")
    missing = [name for name in names if unborn(births[name], json.loads(files[name].read_text()))]
    for name in missing:
        print(f"{name}: rows without a birth: measure them by `python -m benchmarks`, or through its `record`")
    checkout = Checkout(_ROOT)
    lack = checkout.lack()
    if lack is not None:
        print(f"Figures were not compared with the code: {lack}.")
        return int(options.fail and bool(missing))
    paths = measured_paths()
    stale = {name: judged(births[name], paths[name], checkout) for name in names}
    if options.drop:
        for name in names:
            _drop(files[name], births[name], stale[name])
        return 0
    _tell({name: found for name, found in stale.items() if found}, births, shown)
    count, on = sum(map(bool, stale.values())), sum(bool(stale[name]) for name in names if name in shown)
    print(f"{count} of {len(names)} results were measured with other code than today's, {on} that {_FRONT[0]} shows.")
    failing = sorted({*missing, *(name for name in stale if stale[name] and name in shown)})
    if failing and options.fail:
        print(f"error: stale figures on {', '.join(_FRONT)}: {', '.join(failing)}", file=sys.stderr)
    return int(options.fail and bool(failing))


def _drop(file: Path, births: Sequence[Birth], stale: Sequence[Stale]) -> None:
    """Take stale rows out of a file, and their births beside it."""
    gone = [each.birth for each in stale]
    kept = without(json.loads(file.read_text()), (row for birth in gone for row in birth.rows))
    file.write_text(in_lines(kept) + "\n")
    save_births(file, [birth for birth in births if birth not in gone])
    print(f"{file.stem}: {sum(len(birth.rows) for birth in gone)} rows dropped")


def _tell(
    stale: Mapping[str, Sequence[Stale]], births: Mapping[str, Sequence[Birth]], shown: Mapping[str, Sequence[str]]
) -> None:
    """A line for each stale result, and for those that the front pages show the commands that measure them anew."""
    for name, found in stale.items():
        oldest = min(found, key=lambda each: each.birth.date)
        rows, count = (sum(len(birth.rows) for birth in of) for of in ([each.birth for each in found], births[name]))
        on = f", on {', '.join(shown[name])}" if name in shown else ""
        print(f"{name}{on}: {rows} of {count} rows, from {oldest.birth.date} ({oldest.birth.commit}): {oldest.why}")
        if name in shown:
            for command in dict.fromkeys(each.birth.command for each in found):
                print(f"    {command}")


if __name__ == "__main__":
    sys.exit(main())
