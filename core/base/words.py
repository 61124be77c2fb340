"""Texts of people and for them: numbers and lists in words, sizes, messages of one line, rows as aligned columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Annotated, Final, TypeAlias

Line: TypeAlias = Annotated[str, "told"]
"""Text of another process, which is made a line of a bounded length (`told`) where it comes in."""

# Errors are said as tracebacks end, and by groups of torch.distributed.
_BLAMED: Final = re.compile(
    r"(?:taihu\.errors\.\w+: |[\w.]*DistBackendError: )?(?:taihu group '[^']*', [^:]*: )?"
    r"(server|worker|rank) ([0-9]+)\b"
)
_CUT_OFF: Final = re.compile(_BLAMED.pattern + r".* was lost: its connection (?:broke|ended)$")
_UNITS: Final = MappingProxyType({"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12})
_MOST_TOLD: Final = 2000
_RATES: Final = MappingProxyType({"k": 1e3, "m": 1e6, "g": 1e9})


def counted(number: int, thing: str) -> str:
    """`1 group`, `2 groups`, `1,000 groups`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ends_in_th = 10 <= number % 100 <= 20
    return f"{number:,}{'th' if ends_in_th else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def listed(things: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(things[:-1]), *things[-1:]) if part)


def parse_bytes(text: str) -> float | None:
    """The bytes of a size such as `4MB` or `2.5GB`; None where `text` is no number with B, kB, MB, GB or TB."""
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kMGT]?B)", text)
    return None if size is None else float(size[1]) * _UNITS[size[2]]


def parse_rate(text: str) -> float | None:
    """The bits per second of a rate such as `1gbit`; None where `text` is no number with kbit, mbit or gbit."""
    rate = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmg])bit", text.lower())
    return None if rate is None else float(rate[1]) * _RATES[rate[2]]


def one_line(text: str) -> str:
    """`text` with a single space for every break or run of white space, and escapes for what does not print.

    So no terminal is told anything by it but letters: no colours, titles, moves, or another direction of writing.
    """
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(map(_printable, line))


def told(text: str) -> str:
    """Text of another process: one line of a bounded length."""
    cut = text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}..."
    return one_line(cut)


def _printable(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def said_by(member: str, failure: str) -> str:
    """`worker 1: failure`; words that begin with a member stay as they are, however often they are passed on."""
    return failure if re.match(r"(?:server|worker) [0-9]+\b", failure) else f"{member}: {failure}"


def blamed(failure: str) -> str | None:
    """The member that an error begins with: the one that it is due to, `worker 1`; None where it names none."""
    found = _BLAMED.match(failure)
    return None if found is None else f"{'server' if found[1] == 'server' else 'worker'} {found[2]}"


def cut_off(failure: str) -> str | None:
    """The member whose connection broke or ended, where an error begins with that: `worker 1`; else None."""
    return blamed(failure) if _CUT_OFF.match(failure) else None


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> Iterator[str]:
    """A line for each row; the first `left` columns, by default all, begin at one place, the others end at one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        line = "  ".join(
            f"{cell:{'<' if left is None or place < left else '>'}{width}}" for place, (cell, width) in cells
        )
        yield line.rstrip()
