"""Rows of earlier lives of a run, out of its tables, for a logger that lacks some."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from pathlib import Path
from typing import Final

from taihu.core.job.loggers import Kind, LoggedRow
from taihu.core.job.run_folder import EPOCHS, STEPS
from taihu.worker.reporting.run_rows import Scalars, logged_step, logged_test

_TABLES: Final[tuple[tuple[Kind, str, Callable[[Scalars], LoggedRow]], ...]] = (
    ("step", STEPS, logged_step),
    ("test", EPOCHS, logged_test),
)


def rows_in(folders: tuple[Path, ...], had: Mapping[Kind, int], begun_after: int) -> Iterator[LoggedRow]:
    """The rows up to step `begun_after` that a logger lacks, by ascending steps in each folder.

    Args:
        folders: of runs, an earlier one first; a table may be missing, and its last row be half a row.
        had: the last step of each kind that the logger has.
        begun_after: the step behind which the run goes on.
    """
    for folder in folders:
        tables = [_rows(folder / name, made, had.get(kind, 0), begun_after) for kind, name, made in _TABLES]
        yield from merge(*tables, key=lambda row: row.step)


def _rows(path: Path, made: Callable[[Scalars], LoggedRow], after: int, last: int) -> Iterator[LoggedRow]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.reader(file)
        columns = next(table, [])
        if "step" not in columns:
            return
        step_at = columns.index("step")
        for fields in table:
            if len(fields) == len(columns) and after < int(fields[step_at]) <= last:
                yield made({name: float(text) for name, text in zip(columns, fields, strict=True) if text})
