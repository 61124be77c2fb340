"""Rows that a benchmark adds to a file, one run after another, and their tables in pages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

__all__ = ["in_lines", "in_page", "load_rows", "publish", "save_picture", "save_rows", "train_missing"]

_LETTERS: Final = 120


def load_rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows that the file holds already; none without one."""
    return list(json.loads(path.read_text())) if path is not None and path.exists() else []


def save_rows(path: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Write all of them, if there is a path."""
    if path is not None:
        path.write_text(in_lines(rows) + "\n")


def in_lines(value: Any, indent: int = 0) -> str:
    """JSON in lines of at most 120 letters, where no value by itself is longer: what fits on a line stands on it."""
    whole = json.dumps(value)
    if not isinstance(value, dict | list | tuple) or indent + len(whole) <= _LETTERS:
        return whole
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key))}: {in_lines(each, indent + 1)}" for key, each in value.items()]
    elif all(isinstance(each, int | float) for each in value):
        return (
            "[\n"
            + textwrap.fill(whole[1:-1], _LETTERS, initial_indent=inner, subsequent_indent=inner)
            + f"\n{inner[1:]}]"
        )
    else:
        parts = [in_lines(each, indent + 1) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{inner[1:]}{end}"


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib as PNG and as SVG beside it, whichever of them `path` names."""
    figure.savefig(path.with_suffix(".png"), dpi=110)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def train_missing(  # noqa: PLR0917 - what is trained, what is there, where it goes
    benchmark: str,
    cells: Iterable[Any],
    rows: list[dict[str, Any]],
    kept: Path | None,
    data: Path | None,
    told: Callable[[Mapping[str, Any]], str],
) -> None:
    """Add a row for each cell, an object of a dataclass, that `rows` lack; each is saved, and told of, at once.

    Raises:
        CalledProcessError: a cell failed.
    """
    for cell in cells:
        names = asdict(cell)
        if cell not in [type(cell)(**{name: row[name] for name in names if name in row}) for row in rows]:
            rows.append(_row_of_a_cell(benchmark, names, data))
            save_rows(kept, rows)
            print(f"{cell}: {told(rows[-1])}", flush=True)


def _row_of_a_cell(benchmark: str, cell: Mapping[str, object], data: Path | None) -> dict[str, Any]:
    """The row that `python -m benchmarks BENCHMARK --cell CELL` prints, as a process of its own."""
    command = [sys.executable, "-m", "benchmarks", benchmark, "--cell", json.dumps(cell)]
    command += ["--path", str(data.resolve())] if data is not None else []
    # Benchmarks are not installed: Python finds them from the folder that holds them.
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def publish(text: str, mark: str, page: Path | None) -> None:
    """Print a table, and put it between its marks in `page`, if there is one."""
    print(text)
    if page is not None:
        page.write_text(in_page(page.read_text(), mark, text))


def in_page(page: str, mark: str, text: str) -> str:
    """`page` with `text` in the place of what stands between the comments `mark` and `end`.

    The comment may choose what of a table the page shows, in lines of its own behind the mark: `columns: NAME; NAME`,
    `rows: COLUMN = VALUE or VALUE; COLUMN = VALUE`.

    Raises:
        SystemExit: the page has no such comments, or the table no such column.
    """
    begin, end = f"<!-- {mark}", "<!-- end -->"
    place = re.compile(rf"({re.escape(begin)}((?:\n(?:columns|rows): [^\n]*)*)\s-->).*?{re.escape(end)}", re.DOTALL)
    if not place.search(page):
        raise SystemExit(f"error: the page has no lines {begin} --> and {end}")
    return place.sub(lambda found: f"{found[1]}\n{_chosen(text, found[2])}\n{end}", page)


def _chosen(text: str, choice: str) -> str:
    """The columns and rows of a table that the lines of `choice` name, all of them without one; other lines stay."""
    if not choice:
        return text
    parts = dict(line.split(": ", 1) for line in choice.strip().split("\n"))
    lines = text.split("\n")
    head = next(_cells(line) for line in lines if line.startswith("|"))
    columns = parts["columns"].split("; ") if "columns" in parts else head
    conditions = [row.split(" = ", 1) for row in parts["rows"].split("; ")] if "rows" in parts else []
    wanted = {column: values.split(" or ") for column, values in conditions}
    if missing := {*columns, *wanted} - {*head}:
        raise SystemExit(f"error: the table has no column {', '.join(sorted(missing))}")
    shown = []
    for line in lines:
        cells = _cells(line)
        if not line.startswith("|"):
            shown.append(line)
        elif cells == head or not line.strip("|-: ") or all(cells[head.index(key)] in wanted[key] for key in wanted):
            kept = [cell for cell, column in zip(cells, head, strict=True) if column in columns]
            shown.append(f"| {' | '.join(kept)} |" if line.strip("|-: ") else f"|{'|'.join(kept)}|")
    return "\n".join(shown)


def _cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
