"""The birth of rows of a result: the command, commit, day, processor and load that they were measured with.

A result is a file of JSON in benchmarks/results, whose rows are the items of its list or object. Its births stand in
`births/` beside it, under the same name, and name their rows by digests. Pure but for reading and writing them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import in_lines

__all__ = ["RESULTS", "UNKNOWN", "Birth", "after_a_run", "births_of", "digests", "save_births", "unborn", "without"]

RESULTS: Final = Path(__file__).parents[1] / "results"
UNKNOWN: Final = "unknown"
_DIGITS: Final = 10


@dataclass(frozen=True)
class Birth:
    """One run that measured rows; what nobody wrote down is UNKNOWN.

    Args:
        command: as it was typed.
        commit: of the code, in full or short; UNKNOWN where nobody knows it.
        date: in UTC, as 2026-11-29.
        processor: its name, and the number of its cores.
        load: the mean number of processes that wanted a processor in the minute before the run, or words for it.
        told_by: `run` where the run itself wrote this, or `history`: the commit that brought the rows stands for that
            of the code, which is at most as new.
        uncommitted: files that had changes which no commit has.
        rows: digests of the rows.
    """

    command: str
    commit: str
    date: str
    processor: str
    load: float | str
    told_by: str
    uncommitted: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


def digests(result: Any) -> tuple[str, ...]:
    """A digest of each row, in their order; spaces and the order of keys do not count."""
    texts = (json.dumps(row, sort_keys=True) for row in _items(result))
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in texts)


def after_a_run(births: Sequence[Birth], before: Any, after: Any, run: Birth) -> list[Birth]:
    """The births of a result whose rows were `before` and are `after` the run.

    Rows that are new are the run's; births that have no row left are no more.
    """
    there = digests(after)
    known = set(digests(before))
    kept = [replace(birth, rows=tuple(row for row in birth.rows if row in there)) for birth in births]
    of_run = tuple(row for row in there if row not in known)
    return [birth for birth in (*kept, replace(run, rows=of_run)) if birth.rows]


def without(result: Any, rows: Iterable[str]) -> Any:
    """A result without the rows of these digests."""
    gone = set(rows)
    kept = [item for item, row in zip(_items(result), digests(result), strict=True) if row not in gone]
    return dict(kept) if isinstance(result, dict) else kept


def unborn(births: Iterable[Birth], result: Any) -> int:
    """The number of rows that no birth names."""
    named = {row for birth in births for row in birth.rows}
    return sum(row not in named for row in digests(result))


def births_of(result: Path) -> list[Birth]:
    """The births of the rows of a file; none where nobody wrote them."""
    file = _file(result)
    if not file.exists():
        return []
    read = json.loads(file.read_text())
    return [Birth(**{**each, **{name: tuple(each[name]) for name in ("uncommitted", "rows")}}) for each in read]


def save_births(result: Path, births: Sequence[Birth]) -> None:
    """Write the births of the rows of a file."""
    _file(result).parent.mkdir(exist_ok=True)
    _file(result).write_text(in_lines([asdict(birth) for birth in births]) + "\n")


def _items(result: Any) -> Iterable[Any]:
    return result.items() if isinstance(result, dict) else result


def _file(result: Path) -> Path:
    return result.parent / "births" / result.name
