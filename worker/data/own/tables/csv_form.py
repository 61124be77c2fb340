"""The form of a CSV file, told by its first lines: what separates fields, which line has names, where rows begin."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from taihu.worker.data.own.tables.dress import MISSING_MARKS, parse_number, seconds_of

_SEPARATORS: Final = (",", "\t", ";", "|")
_MOST_ROWS: Final = 400
_MOST_TOLD: Final = 60


@dataclass(frozen=True)
class CsvForm:
    """The form of a file.

    Attributes:
        separator: of fields.
        names: of the columns, in order; `column 3` of one without a name.
        unnamed: places of columns without a name.
        empty: places of columns without names and values, as a separator at the end of every line makes them.
        start: of the rows, in characters.
    """

    separator: str
    names: tuple[str, ...]
    unnamed: tuple[int, ...]
    empty: tuple[int, ...]
    start: int


class NoNamesError(ValueError):
    """The first line looks like a row, or might be either; the message says what was seen and what to write."""


@dataclass(frozen=True)
class _Line:
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class _Parsed:
    """The first line that is no comment, and rows below it, under one separator."""

    separator: str
    fields: list[str]
    rows: list[list[str]]
    end: int

    @property
    def fit(self) -> float:
        """Share of rows that have as many fields as the first line, or all of them one more; 0 of one field."""
        if len(self.fields) < 2:
            return 0.0
        if not self.rows:
            return 0.5
        same = sum(len(row) == self.width for row in self.rows)
        return same / max(1, len(self.rows)) if self.width - len(self.fields) in {0, 1} else 0.0

    @property
    def width(self) -> int:
        """The commonest number of fields in a row."""
        if not self.rows:
            return len(self.fields)
        return max(Counter(map(len, self.rows)).items(), key=lambda each: (each[1], each[0] == len(self.fields)))[0]

    @property
    def others_inside(self) -> float:
        """Share of fields in which another separator than a comma stands."""
        fields = [*self.fields, *(field for row in self.rows for field in row)]
        marks = [mark for mark in _SEPARATORS[1:] if mark != self.separator]
        return sum(any(mark in field for mark in marks) for field in fields) / max(1, len(fields))


def column_name(place: int) -> str:
    """The name of a column, by its place from 0, that has none."""
    return f"column {place + 1}"


def form_of(head: str, *, header: bool | None, tabs: bool, expected: Sequence[str] = ()) -> CsvForm:
    """Tell the form of a file by its beginning, of whole lines.

    Args:
        head: its first lines.
        header: whether its first line has names; None: told by it.
        tabs: whether its name says that tabs separate fields.
        expected: names that its columns must have; a line that has all of them is no row.

    Raises:
        NoNamesError: it does not tell.
    """
    lines, told = _beginning(head)
    separator = told or _separator(lines, tabs=tabs)
    lines = _without_comments(lines, separator)
    parsed = _parse(lines, separator)
    # One more may have no name, as those of row numbers and those behind a separator at the end; others are too many.
    width = len(parsed.fields) + (parsed.width == len(parsed.fields) + 1)
    if header is not False:
        names = [" ".join(field.split()) for field in parsed.fields]
        if lines and names and lines[0].text.lstrip().startswith("#"):
            names[0] = names[0].lstrip("# ")
        # R writes no name above the names of rows.
        before = width - len(names) if any(row[-1:] != [""] for row in parsed.rows if len(row) == width) else 0
        names = [*[""] * before, *names, *[""] * (width - len(names) - before)]
        if header is None and not (expected and set(expected) <= set(names)):
            _check_names(names, parsed.rows)
        start = parsed.end
    else:
        names, start = [column_name(place) for place in range(width)], lines[0].start if lines else 0
        parsed = _Parsed(separator, [], [parsed.fields, *parsed.rows], parsed.end)
    nameless = [place for place, name in enumerate(names) if not name]
    empty = [
        place
        for place in nameless
        if all(not field.strip() for row in parsed.rows for field in row[place : place + 1])
    ]
    if header is False and width > 1 and all(len(row) < width or not row[-1].strip() for row in parsed.rows):
        empty = [width - 1]
    return CsvForm(
        separator,
        tuple(name or column_name(place) for place, name in enumerate(names)),
        tuple(place for place in nameless if place not in empty),
        tuple(empty),
        start,
    )


def _beginning(head: str) -> tuple[list[_Line], str | None]:
    """Lines, without empty ones at the beginning, and the separator that Excel's first line names."""
    lines: list[_Line] = []
    start, told = 0, None
    for text in re.split(r"(?<=\n)|(?<=\r)(?!\n)", head):
        line = _Line(text, start, start + len(text))
        start = line.end
        named = re.fullmatch(r'"?sep=(.)"?\s*', text) if not lines else None
        if named is not None and named[1] in _SEPARATORS:
            told = named[1]
        elif lines or text.strip():
            lines.append(line)
    return lines, told


def _parse(lines: Sequence[_Line], separator: str) -> _Parsed:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for line in lines:
            taken += 1
            yield line.text

    rows: list[list[str]] = []
    first: list[str] | None = None
    end = lines[0].start if lines else 0
    try:
        for row in csv.reader(texts(), delimiter=separator, skipinitialspace=separator != "\t"):
            if first is None:
                first, end = row, lines[taken - 1].end
            elif row and (len(row) > 1 or row[0].strip()):
                rows.append(row)
            if len(rows) == _MOST_ROWS:
                break
    except csv.Error:  # a field of more than 128 KiB; what was read so far tells enough
        pass
    return _Parsed(separator, first or [], rows, end)


def _separator(lines: Sequence[_Line], *, tabs: bool) -> str:
    """The mark by which most rows have as many fields as the names, and that leaves no other mark in fields."""
    likely = ("\t", ",", ";", "|") if tabs else _SEPARATORS
    parsed = [_parse(_without_comments(lines, mark), mark) for mark in likely]
    fits = [(each.fit - each.others_inside, each.fit, -place) for place, each in enumerate(parsed)]
    best = max(fits)
    return likely[-best[2]] if best[1] else likely[0]


def _without_comments(lines: Sequence[_Line], separator: str) -> list[_Line]:
    """Lines from that of the names on; a comment may be it where the line below has numbers alone, and as many."""
    left = list(lines)
    last: _Line | None = None
    while left and left[0].text.lstrip().startswith("#"):
        last = left.pop(0)
        while left and not left[0].text.strip():
            left.pop(0)
    if last is None or not left:
        return [last] if last is not None else left
    names, row = (_parse([line], separator).fields for line in (last, left[0]))
    if len(names) == len(row) > 1 and any(_is_value(field) for field in row):
        return [last, *left]
    return left


def _is_value(field: str) -> bool:
    field = field.strip()
    return (
        parse_number(field, ".") is not None or parse_number(field, ",") is not None or seconds_of(field) is not None
    )


def _check_names(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Refuse a first line that may be a row: of numbers above numbers, or of texts that occur below."""
    as_row = False
    for place, name in enumerate(names):
        below = [row[place].strip() for row in rows if len(row) > place]
        below = [field for field in below if field.casefold() not in MISSING_MARKS]
        of_values = bool(below) and 2 * sum(map(_is_value, below)) > len(below)
        if name and not _is_value(name) and name.casefold() not in MISSING_MARKS and of_values:
            return
        as_row = as_row or (bool(name) and ((_is_value(name) and (of_values or not below)) or name in below))
    if as_row or all(_is_value(name) for name in names):
        told = ", ".join(names)
        told = told if len(told) <= _MOST_TOLD else f"{told[:_MOST_TOLD]}..."
        raise NoNamesError(
            f"its first line, {told!r}, looks like a row and not like names; set data.header = false if it is "
            "one (columns are then called 'column 1', 'column 2', ...), or true if these are names"
        )
