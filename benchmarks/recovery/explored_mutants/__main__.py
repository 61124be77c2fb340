"""The explorer is proved: wrong changes to the daemons, one at a time, and the first seed that finds each.

Each change of `changes.toml` is a bug of the kinds that protocols have: a lost notify, a rename before the bytes are
durable, a frame of an old generation that is accepted. Modules are changed while they are loaded; nothing on disk is.
A seed counts as one that finds a change if its run is wrong with it and right without. Prints a table in Markdown.

Examples:
  python -m benchmarks explored_mutants --json proofs.json      # all; goes on where it was broken off
  python -m benchmarks explored_mutants --only taken-rank-admitted --seeds 500
  python -m benchmarks explored_mutants --only membership links
  python -m benchmarks explored_mutants --json proofs.json --seeds 0      # the table of what is known
  python -m benchmarks explored_mutants --json proofs.json --again        # after a change of the explorer
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recovery.explored_mutants.changes import Change, chosen, read_changes
from benchmarks.recovery.explored_mutants.proving import Book, Proof, confirm, prove
from taihu.core.base.errors import ConfigError
from taihu.local.display.progress import Progress

__all__ = ["main", "table"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove the explorer; 0 where every change was found."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks explored_mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these changes, or those of these areas"
    )
    parser.add_argument("--seeds", type=int, default=2000, help="the most seeds for each change (default: 2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what is known there, and go on from it")
    parser.add_argument(
        "--again", action="store_true", help="run the seeds of --json again; where one finds nothing, explore anew"
    )
    options = parser.parse_args(arguments)
    try:
        changes = chosen(read_changes(), options.only)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    book, progress = Book.read(options.json), Progress()
    try:
        for change in changes:
            if options.again:
                confirm(change, book)
            proof = prove(change, options.seeds, book, progress)
            print(f"{change.name}: {_outcome(proof)}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    proofs = [book.of(change) for change in changes]
    print(table(changes, proofs))
    return 0 if all(proof.seed is not None for proof in proofs) else 1


def table(changes: Sequence[Change], proofs: Sequence[Proof]) -> str:
    """The table in Markdown, a line for each change, and the sum."""
    lines = ["| change | area | what it is | seed | found by |", "| --- | --- | --- | ---: | --- |"]
    for change, proof in zip(changes, proofs, strict=True):
        at = "not yet" if proof.seed is None else f"{proof.seed:,}"
        lines.append(f"| {change.name} | {change.area} | {change.why} | {at} | {_cell(proof.problem)} |")
    found = sum(proof.seed is not None for proof in proofs)
    return "\n".join([*lines, "", f"{found} of {len(proofs)} were found."])


def _cell(text: str) -> str:
    shown = text.replace("|", "/")
    return shown if len(shown) <= 100 else f"{shown[:97]}..."


def _outcome(proof: Proof) -> str:
    if proof.seed is None:
        return f"not found in {proof.seeds:,} seeds, {proof.seconds:.0f} s"
    return f"found at seed {proof.seed:,} in {proof.seconds:.0f} s: {_cell(proof.problem)}"


if __name__ == "__main__":
    sys.exit(main())
