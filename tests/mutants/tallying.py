"""Counts what becomes of a core's mutants."""

from __future__ import annotations

import random
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.cores import CORES, ROOT
from mutants.judging import judge
from mutants.operators import Change, Mutant, mutants_of
from mutants.reaching import Recording
from mutants.results import Fate, Results, Verdict

__all__ = ["Survivor", "Tally", "say", "tally"]

_EQUIVALENT = Path(__file__).with_name("equivalent")

_KEPT = ROOT / "build" / "mutants"


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


def tally(core: str, sample: int | None, seed: int, at: str = "", *, afresh: bool = False) -> Tally:
    """Judge the mutants of a core, or `sample` of them drawn with `seed`; what earlier runs found out counts.

    `at` is a file, relative to the root, or `file:line`: only the mutants there count. `afresh` forgets earlier runs,
    and judges the mutants that are listed as equivalent, too.

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
    chosen = every if sample is None or sample >= len(every) else random.Random(seed).sample(every, sample)
    files, tests, scenarios = CORES[core].files, CORES[core].test_files, CORES[core].scenario_files
    results = Results(_KEPT / f"{core}.jsonl", ROOT, tests, scenarios, afresh=afresh)
    counting = _Counting(core, len(chosen))
    rest = []
    for mutant in chosen:
        verdict = results.known(mutant.key)
        if counting.is_listed(mutant) and not afresh:
            counting.excused += 1
        elif verdict:
            counting.take(mutant, verdict)
        else:
            rest.append(mutant)
    say(f"{core}: {len(chosen)} of {len(every)} mutants in {len(files)} files, {len(rest)} not judged yet")

    if len(chosen) == len(every) and not at:
        counting.say_what_is_gone(every)

    def tell(mutant: Mutant, verdict: Verdict) -> None:
        counting.take(mutant, verdict)
        results.add(mutant.key, verdict)

    if rest:
        recording = Recording(_KEPT / f"{core}.lines.json", ROOT, files, scenarios, tests)
        judge(CORES[core], rest, recording, tell)
    noticed = sum(number for fate, number in counting.fates.items() if fate.is_noticed)
    survivors = tuple(counting.survivors)
    return Tally(core, len(every), noticed + len(survivors), noticed, counting.excused, survivors)


class _Counting:
    """Counts verdicts, and says who survives."""

    def __init__(self, core: str, mutants: int) -> None:
        self._core, self._mutants = core, mutants
        self._equivalent = _equivalent(core)
        self.fates: Counter[Fate] = Counter()
        self.survivors: list[Survivor] = []
        self.excused = 0

    def take(self, mutant: Mutant, verdict: Verdict) -> None:
        if verdict.fate is Fate.NO_MUTANT:
            raise RuntimeError(f"{mutant.path}:{mutant.first_line} {mutant.place} cannot be changed; mend the runner")
        self.fates[verdict.fate] += 1
        listed = self.is_listed(mutant)
        if verdict.fate in (Fate.SURVIVED, Fate.UNREACHED):
            if listed:
                self.excused += 1
            else:
                unreached = verdict.fate is Fate.UNREACHED
                self.survivors.append(
                    Survivor(mutant.path, mutant.first_line, mutant.place, mutant.change, unreached)
                )
                say(str(self.survivors[-1]))
        elif listed:
            say(f"{mutant.path}:{mutant.first_line} is listed as equivalent, but {verdict.by} notices it")
        if not self.fates.total() % 20:
            done = f"{self.fates.total()} of {self._mutants} mutants judged"
            say(f"{self._core}: {done}, {len(self.survivors)} survive, {time.process_time():.0f} s of CPU")

    def say_what_is_gone(self, mutants: Sequence[Mutant]) -> None:
        made = {(mutant.path, mutant.place, mutant.change) for mutant in mutants}
        for (path, place), changes in self._equivalent.items():
            for change in changes:
                if (path, place, change) not in made:
                    say(f"{path} {place}: listed as equivalent, but nobody makes it: {change.becomes}")

    def is_listed(self, mutant: Mutant) -> bool:
        return (mutant.path, mutant.place) in self._equivalent and mutant.change in self._equivalent[
            mutant.path, mutant.place
        ]


def _equivalent(core: str) -> dict[tuple[str, str], set[Change]]:
    """Changes by path and place."""
    file = _EQUIVALENT / f"{core}.toml"
    listed: dict[tuple[str, str], set[Change]] = defaultdict(set)
    for row in tomllib.loads(file.read_text("utf-8"))["mutant"] if file.exists() else []:
        listed[row["path"], row["place"]].add(Change(row["was"], row["becomes"]))
    return listed


def say(line: str) -> None:
    """Show a line at once."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
