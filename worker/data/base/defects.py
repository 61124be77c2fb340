"""Defects of a data set, collected: all are told at once, each kind with its number and the first places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from taihu.core.base.errors import DataError
from taihu.core.base.words import counted, one_line

_PLACES_TOLD: Final = 3
_LONGEST_SEEN: Final = 40
_FAULTS_TOLD: Final = 6
_MOST_TOLD: Final = 1200


@dataclass(frozen=True)
class Fault:
    """A kind of defect, in words: `of` is the column, if it is of one, `remedy` says how it is mended."""

    fault: str
    remedy: str = ""
    of: str = ""

    def at(self, noun: str, places: list[str], count: int) -> str:
        """The fault with its first `places`, of `count` samples called `noun`; of the whole data where that is 0."""
        if not count:
            return " ".join(part for part in (self.of, self.fault) if part)
        if count == 1:
            return f"{noun} {places[0]}{f', {self.of}' if self.of else ''}: {self.fault}"
        told = ", ".join(places) + (", ..." if count > len(places) else "")
        return f"{f'{self.of}: ' if self.of else ''}{self.fault}, {counted(count, noun)}: {told}"


@dataclass
class _Found:
    places: list[str] = field(default_factory=list)
    count: int = 0


def _short(text: str) -> str:
    text = one_line(text)
    return repr(text if len(text) <= _LONGEST_SEEN else f"{text[:_LONGEST_SEEN]}...")


class Defects:
    """Defects of the samples of a data set, or of a part of it, and of the data as a whole.

    Args:
        where: what has them: the file or folder, for messages.
        noun: what a sample is called: `row`, `image`.
    """

    def __init__(self, where: str, noun: str) -> None:
        self.where = where
        self._noun = noun
        self._found: dict[Fault, _Found] = {}
        self._bad: set[Any] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def bad(self) -> frozenset[Any]:
        """The samples that have a defect: their rows, or files."""
        return frozenset(self._bad)

    def of_data(self, fault: Fault) -> None:
        """Take down a defect that leaving out samples does not mend."""
        self._found.setdefault(fault, _Found())

    def of_samples(self, fault: Fault, samples: Iterable[Any], seen: Iterable[str] = ()) -> None:
        """Take down a defect of `samples`, each as it is called in messages: a row's number, a file's name.

        `seen` are texts of the first of them that are to be told.
        """
        found = self._found.setdefault(fault, _Found())
        texts = iter(seen)
        for sample in samples:
            found.count += 1
            self._bad.add(sample)
            if len(found.places) < _PLACES_TOLD:
                text = next(texts, None)
                found.places.append(str(sample) if text is None else f"{sample} ({_short(text)})")

    def lines(self) -> Iterator[str]:
        """A line for each kind of defect, with its remedy."""
        for fault, found in self._found.items():
            told = fault.at(self._noun, found.places, found.count)
            yield f"{told}; {fault.remedy}" if fault.remedy else told

    def as_json(self) -> list[dict[str, object]]:
        """A table for each kind of defect; `samples` is 0 where it is of the data as a whole."""
        return [
            {
                "of": fault.of,
                "fault": fault.fault,
                "remedy": fault.remedy,
                "samples": each.count,
                "first": each.places,
            }
            for fault, each in self._found.items()
        ]

    def check(self, skip_bad: int) -> str:
        """Whether samples may be left out so that nothing is wrong with the others: see `check_all`."""
        return check_all([self], skip_bad)

    @property
    def may_skip(self) -> bool:
        """Whether leaving samples out mends all of it."""
        return all(found.count for found in self._found.values())

    def told(self) -> str:
        """All kinds of defects in one line of bounded length."""
        kinds = len(self._found)
        return f"{self.where}: {f'{kinds} kinds of defects: ' if kinds > 1 else ''}{self._told()}"

    @property
    def counted_bad(self) -> str:
        """The number of bad samples, in words."""
        return counted(len(self._bad), self._noun)

    def _told(self) -> str:
        told = [f"({number}) {line}" for number, line in enumerate(self.lines(), 1)]
        if len(told) == 1:
            return told[0].removeprefix("(1) ")
        if len(told) > _FAULTS_TOLD:
            told = [*told[:_FAULTS_TOLD], f"and {len(told) - _FAULTS_TOLD} more; taihu check-data tells all"]
        text = " ".join(told)
        return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]} ...; taihu check-data tells all"


def check_all(parts: Sequence[Defects], skip_bad: int, *, told: bool = True) -> str:
    """Whether samples may be left out of the parts of a data set so that nothing is wrong with the others.

    Args:
        parts: the defects of each.
        skip_bad: how many samples may be left out, of all parts together.
        told: whether the setting by which they can be left out is told.

    Returns:
        What is left out, in words; nothing where there are no defects.

    Raises:
        DataError: there are more, or others; one line tells all of them.
    """
    faulty = [part for part in parts if part]
    text = "; ".join(part.told() for part in faulty)
    if not faulty:
        return ""
    bad = sum(len(part.bad) for part in faulty)
    if not all(part.may_skip for part in faulty) or (not told and bad > skip_bad):
        raise DataError(text)
    if bad > skip_bad:
        allowed = f", which is {skip_bad}" if skip_bad else ""
        left = " and ".join(part.counted_bad for part in faulty)
        raise DataError(f"{text}; or leave {left} out with data.skip_bad = {bad}{allowed}")
    return "; ".join(f"{part.counted_bad} left out by data.skip_bad: {part.told()}" for part in faulty)
