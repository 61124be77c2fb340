"""Rows whose code has changed since they were measured, and pages that show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from benchmarks.births.birth import UNKNOWN, Birth

__all__ = ["History", "Stale", "judged", "shown_results"]

_COMMAND: Final = re.compile(r"python -m benchmarks ([a-z]\w*)")
# So many changed files are named.
_NAMED: Final = 1


class History(Protocol):
    """The code of commits, as a checkout has it."""

    def has(self, commit: str) -> bool:
        """Tell whether a commit is in the history."""

    def changed(self, commit: str, paths: Sequence[str]) -> Iterable[str]:
        """Files below paths whose code is no more that of a commit."""

    def commits_since(self, commit: str, paths: Sequence[str]) -> int:
        """The number of commits since one that touch paths."""


@dataclass(frozen=True)
class Stale:
    """Rows of one birth that today's code may not repeat, and why."""

    birth: Birth
    why: str


def judged(births: Sequence[Birth], paths: Sequence[str], history: History) -> list[Stale]:
    """The births of one result of which the code below `paths` has changed, or cannot be looked at."""
    found = ((birth, _why(birth, paths, history)) for birth in births)
    return [Stale(birth, why) for birth, why in found if why is not None]


def _why(birth: Birth, paths: Sequence[str], history: History) -> str | None:
    if birth.uncommitted:
        return f"measured with changes that no commit has: {birth.uncommitted[0]}"
    if birth.commit == UNKNOWN or not history.has(birth.commit):
        return f"commit {birth.commit} is not in the history"
    changed = list(islice(history.changed(birth.commit, paths), _NAMED))
    if not changed:
        return None
    commits = history.commits_since(birth.commit, paths)
    since = f"{commits} commits since" if commits > 1 else "1 commit since" if commits else "not committed"
    return f"{', '.join(changed)} has changed, and maybe more ({since})"


def shown_results(pages: Iterable[Path], births: Mapping[str, Sequence[Birth]]) -> dict[str, list[str]]:
    """The pages, by name, that show a result: those that name the benchmark whose runs measured its rows."""
    shown: dict[str, list[str]] = {}
    for page in pages:
        names = set(_COMMAND.findall(page.read_text()))
        for result, of_result in births.items():
            if names & {name for birth in of_result for name in _COMMAND.findall(birth.command)}:
                shown.setdefault(result, []).append(page.name)
    return shown
