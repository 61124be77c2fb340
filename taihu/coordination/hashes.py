"""Hashes of parameters that all workers must have alike: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

__all__ = ["HashBook", "difference"]

_SHOWN: Final = 12
_KEPT: Final = 8


class HashBook:
    """The hashes of the workers' parameters behind steps, as they come."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._by_step: dict[int, dict[str, str]] = {}

    def told(self, worker: str, step: int, sha256: str) -> str:
        """A worker's parameters behind `step`; returns who differs, in words, when all have told theirs.

        Nothing where all are alike, or some have not told theirs.
        """
        known = self._by_step.setdefault(step, {})
        known[worker] = sha256
        if len(known) < self._workers:
            # Of workers that never told, no more than of some steps.
            self._by_step = dict(sorted(self._by_step.items())[-_KEPT:])
            return ""
        del self._by_step[step]
        return difference(known)


def difference(hashes: Mapping[str, str]) -> str:
    """Members whose hashes are not those of most, and theirs, in words; nothing where all are alike."""
    usual, count = Counter(hashes.values()).most_common(1)[0]
    if count == len(hashes):
        return ""
    others = [f"{name} {value[:_SHOWN]}" for name, value in hashes.items() if value != usual]
    return f"{', '.join(others)}, {count} of {len(hashes)} {usual[:_SHOWN]}"
