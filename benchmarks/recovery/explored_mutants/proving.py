"""The explorer's result with one wrong change: the first seed that fails with it, and would not without it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import in_lines
from benchmarks.recovery.explored_mutants.changes import Change
from taihu.core.base.errors import RunError
from taihu.explore.campaign.campaign import explore, explored
from taihu.explore.campaign.work import Found, Smaller, Work

__all__ = ["Book", "Proof", "confirm", "prove"]

_CALM: Final = 8


@dataclass(frozen=True)
class Proof:
    """Knowledge of one change so far.

    Attributes:
        name: of the change.
        area: of it.
        digest: of its text.
        seeds: that were explored, from 0 on.
        calm: of some runs without faults, how many were right with the change.
        seed: the first that fails with it and not without; None where none was found.
        problem: the first line of what was wrong.
        seconds: that this took.
    """

    name: str
    area: str
    digest: str
    seeds: int = 0
    calm: int | None = None
    seed: int | None = None
    problem: str = ""
    seconds: float = 0.0


@dataclass
class Book:
    """Proofs in a file, so that a campaign that was broken off goes on.

    Attributes:
        file: where they stand; None for nowhere.
        proofs: by the names of changes.
        unchanged: first lines of what is wrong with seeds without any change, "" where nothing is.
        attended: the same of seeds whose workers agents run.
    """

    file: Path | None = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    unchanged: dict[int, str] = field(default_factory=dict)
    attended: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None) -> Book:
        """The book in a file, if it is there."""
        if file is None or not file.exists():
            return cls(file)
        told: Mapping[str, Any] = json.loads(file.read_text())
        proofs = {each["name"]: Proof(**each) for each in told["proofs"]}
        unchanged, attended = (
            {int(seed): said for seed, said in told.get(which, {}).items()} for which in ("unchanged", "attended")
        )
        return cls(file, proofs, unchanged, attended)

    def of(self, change: Change) -> Proof:
        """The knowledge of a change, as it is now."""
        known = self.proofs.get(change.name)
        if known is None or known.digest != change.digest:
            return Proof(change.name, change.area, change.digest)
        return known

    def note(self, proof: Proof) -> None:
        """Keep what is known now."""
        self.proofs[proof.name] = proof
        self.write()

    def write(self) -> None:
        """Write the file, if there is one."""
        if self.file is not None:
            told = {
                "proofs": [asdict(each) for each in self.proofs.values()],
                "unchanged": dict(sorted(self.unchanged.items())),
                "attended": dict(sorted(self.attended.items())),
            }
            self.file.write_text(in_lines(told) + "\n")

    def known(self, *, agents: bool) -> dict[int, str]:
        """First lines of what is wrong with seeds without any change, where agents run the workers or not."""
        return self.attended if agents else self.unchanged

    def fails_unchanged(self, seed: int, *, agents: bool) -> bool:
        """Whether a seed fails without any change, too."""
        known = self.known(agents=agents)
        if seed not in known:
            known[seed] = _first_line(explored(Work(seed, 1, agents=agents))[0].problems)
            self.write()
        return bool(known[seed])


def confirm(change: Change, book: Book) -> None:
    """Run the seed that found a change again; where it does so no more, the change is as good as new."""
    proof = book.of(change)
    if proof.seed is None:
        return
    found = _run(Work(proof.seed, 1, changes=[change.source], agents=change.agents), lambda _: True)[-1]
    book.known(agents=change.agents).pop(proof.seed, None)
    if found.problems and not book.fails_unchanged(proof.seed, agents=change.agents):
        book.note(replace(proof, problem=_first_line(found.problems)))
    else:
        book.note(Proof(change.name, change.area, change.digest))


def prove(change: Change, seeds: int, book: Book, tell: Callable[[str], None]) -> Proof:
    """Explore with a change until a seed fails by it, or so many have been explored; goes on where `book` ends."""
    proof = book.of(change)
    if proof.seed is not None or proof.seeds >= seeds:
        return proof
    begun_s = time.monotonic() - proof.seconds
    if proof.calm is None:
        work = Work(0, _CALM, changes=[change.source], smaller=Smaller(faults=[]), agents=change.agents)
        calm = _run(work, lambda found: True)
        proof = replace(proof, calm=sum(not found.problems for found in calm))
    while proof.seeds < seeds:
        work = Work(proof.seeds, seeds - proof.seeds, changes=[change.source], agents=change.agents)

        def each(found: Found) -> bool:
            tell(f"{change.name}: seed {found.seed}")
            return not found.problems

        last = _run(work, each)[-1]
        proof = replace(proof, seeds=last.seed + 1, seconds=time.monotonic() - begun_s)
        if last.problems and not book.fails_unchanged(last.seed, agents=change.agents):
            proof = replace(proof, seed=last.seed, problem=_first_line(last.problems))
        book.note(proof)
        if proof.seed is not None:
            break
    return proof


def _run(work: Work, each: Callable[[Found], bool]) -> list[Found]:
    """The outcomes of some seeds, until `each` ends that; a process that an error ends is an outcome, too."""
    outcomes: list[Found] = []

    def take(found: Found) -> bool:
        outcomes.append(found)
        return each(found)

    try:
        explore(work, 1, take)
    except RunError as error:
        seed = outcomes[-1].seed + 1 if outcomes else work.first
        outcomes.append(
            Found(seed, [str(error)], [], [], ended_well=False, virtual_s=0, switches=0, digest="", real_s=0)
        )
    return outcomes


def _first_line(problems: list[str]) -> str:
    return problems[0].splitlines()[0] if problems else ""
