"""Keeps what became of each mutant, so that a run that was broken off goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Fate", "Results", "Verdict"]


class Fate(Enum):
    """The tests' verdict on a mutant: only SURVIVED and UNREACHED are bad; NO_MUTANT could not be made."""

    NOTICED = "noticed"
    ENDLESS = "endless"
    WAITING = "waiting"
    SURVIVED = "survived"
    UNREACHED = "unreached"
    NO_MUTANT = "no mutant"

    @property
    def is_noticed(self) -> bool:
        """Whether a test failed or did not end."""
        return self in (Fate.NOTICED, Fate.ENDLESS, Fate.WAITING)


@dataclass(frozen=True)
class Verdict:
    """The fate of a mutant, and `by` which test, as pytest names it: the last that ran; "" where none did."""

    fate: Fate
    by: str


class Results:
    """A file of one line of JSON for each mutant, written as they are judged.

    What a test noticed counts for as long as the function and the test's file stay as they are; what none noticed,
    for as long as all files of tests and scenarios do. What the function calls may change meanwhile: a last run
    begins afresh.
    """

    def __init__(
        self, file: Path, root: Path, tests: Sequence[str], scenarios: Sequence[str], *, afresh: bool = False
    ) -> None:
        self._file = file
        self._digests = {test: _digest((root / test).read_bytes()) for test in tests}
        self._of_all = _digest(b"".join((root / each).read_bytes() for each in (*tests, *scenarios)))
        self._known: dict[str, Verdict] = {}
        if afresh:
            file.unlink(missing_ok=True)
        if file.exists():
            for line in file.read_text("utf-8").splitlines():
                self._take(json.loads(line))

    def known(self, key: str) -> Verdict | None:
        """The fate of the mutant in an earlier run, or None if that says nothing of the files as they are."""
        return self._known.get(key)

    def add(self, key: str, verdict: Verdict) -> None:
        """Write down what became of a mutant."""
        self._known[key] = verdict
        row = {"key": key, "fate": verdict.fate.value, "by": verdict.by, "tests": self._tests_of(verdict)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _take(self, row: dict[str, str]) -> None:
        verdict = Verdict(Fate(row["fate"]), row["by"])
        if row["tests"] == self._tests_of(verdict):
            self._known[row["key"]] = verdict
        else:
            self._known.pop(row["key"], None)

    def _tests_of(self, verdict: Verdict) -> str:
        """A digest of the files of tests that the verdict stands on; no file's own where the test is gone."""
        own = self._digests.get(verdict.by.partition("::")[0], "")
        return own if verdict.fate.is_noticed else self._of_all


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
