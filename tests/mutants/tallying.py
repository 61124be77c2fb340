"""Counts what becomes of a core's mutants."""

from __future__ import annotations

import random
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mutants.cores import CORES, ROOT
from mutants.judging import Fate, judge
from mutants.operators import Change, Mutant, mutants_of

__all__ = ["Survivor", "Tally", "say", "tally"]

_EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test notices; `unreached` says that none even runs the line."""

    path: str
    line: int
    place: str
    change: Change
    unreached: bool

    def __str__(self) -> str:
        reached = " (no test gets there)" if self.unreached else ""
        return f"{self.path}:{self.line} {self.place}{reached}\n  - {self.change.was}\n  + {self.change.becomes}"


@dataclass(frozen=True)
class Tally:
    """The result of one core."""

    core: str
    possible: int
    mutants: int
    noticed: int
    equivalent: int
    survivors: tuple[Survivor, ...]

    @property
    def ratio(self) -> float:
        """Share of the mutants that change anything which the tests notice; 1 where there is none."""
        return self.noticed / self.mutants if self.mutants else 1.0


def tally(core: str, sample: int | None, seed: int, at: str = "") -> Tally:
    """Judge the mutants of a core, or `sample` of them drawn with `seed`.

    `at` is a file, relative to the root, or `file:line`: only the mutants there count.

    Raises:
        RuntimeError: there are none, or the tests fail without any.
    """
    every = [
        mutant
        for path in CORES[core].files
        if not at or path == at.partition(":")[0]
        for mutant in mutants_of(path, (ROOT / path).read_text("utf-8"))
        if at in ("", path, f"{path}:{mutant.first_line}")
    ]
    if not every:
        raise RuntimeError(f"{at or core}: nothing to change there; name FILE or FILE:LINE of core {core}")
    chosen = every if sample is None or sample >= len(every) else random.Random(seed).sample(every, sample)  # noqa: S311
    equivalent = _equivalent()
    fates: Counter[Fate] = Counter()
    survivors: list[Survivor] = []
    excused = 0

    def tell(mutant: Mutant, fate: Fate) -> None:
        nonlocal excused
        fates[fate] += 1
        if fate in (Fate.SURVIVED, Fate.UNREACHED):
            survivor = Survivor(
                mutant.path,
                mutant.first_line,
                mutant.place,
                mutant.change(mutant.write()),
                fate is Fate.UNREACHED,
            )
            if (survivor.path, survivor.place, survivor.change) in equivalent:
                excused += 1
            else:
                survivors.append(survivor)
                say(str(survivor))
        if not fates.total() % 20:
            say(f"{core}: {fates.total()} of {len(chosen)} mutants judged, {len(survivors)} survive")

    say(f"{core}: {len(chosen)} of {len(every)} mutants in {len(CORES[core].files)} files")
    judge(CORES[core], chosen, tell)
    noticed = fates[Fate.NOTICED] + fates[Fate.ENDLESS]
    return Tally(core, len(every), noticed + len(survivors), noticed, excused, tuple(survivors))


def _equivalent() -> set[tuple[str, str, Change]]:
    rows = tomllib.loads(_EQUIVALENT.read_text("utf-8")).get("mutant", [])
    return {(row["path"], row["place"], Change(row["was"], row["becomes"])) for row in rows}


def say(line: str) -> None:
    """Show a line at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
