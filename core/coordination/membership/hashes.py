"""Hashes of parameters that all workers must have alike: pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

_SHOWN: Final = 12
_KEPT: Final = 8
_BETWEEN: Final = " | "


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


def checksums_in_words(checksums: Sequence[tuple[str, int]]) -> str:
    """Checksums of parameters, 32 bits, with their names, behind one hash of all: what is too long may be cut off."""
    each = [f"{name}={value:08x}" for name, value in checksums]
    return _BETWEEN.join([hashlib.sha256("\n".join(each).encode()).hexdigest(), *each])


def difference(hashes: Mapping[str, str]) -> str:
    """Members whose hashes are not those of most, and theirs, in words; nothing where all are alike.

    Where checksums with names are behind the hashes, the first one that is not alike.
    """
    for words in zip(*(value.split(_BETWEEN)[1:] for value in hashes.values()), strict=False):
        if len(set(words)) > 1:
            name = words[0].rpartition("=")[0]
            shown = _unusual(dict(zip(hashes, words, strict=True)))
            return f"{name} is the first: {shown}; unless the script has changed it on one worker alone"
    return _unusual({name: value.partition(_BETWEEN)[0] for name, value in hashes.items()})


def _unusual(hashes: Mapping[str, str]) -> str:
    usual, count = Counter(hashes.values()).most_common(1)[0]
    if count == len(hashes):
        return ""
    others = [f"{name} {_short(value)}" for name, value in hashes.items() if value != usual]
    return f"{', '.join(others)}, {count} of {len(hashes)} {_short(usual)}"


def _short(value: str) -> str:
    return value.rpartition("=")[2][:_SHOWN]
