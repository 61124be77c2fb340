"""Reading tables portion by portion: CSV files at once, as texts, Parquet files by row groups, with their types."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.defects import Defects, Fault
from taihu.worker.data.own.tables.csv_form import CsvForm, NoNamesError, form_of
from taihu.worker.data.own.tables.csv_text import read_csv_text

_PORTION: Final = 65_536
_SNIFFED_BYTES: Final = 1 << 18
_BLOCK: Final = 1 << 24
# Texts that pandas and PyArrow take for a missing value where they are not quoted, in texts as in numbers.
_MISSING: Final = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "n/a", "nan", "null",
)  # fmt: skip


@dataclass(frozen=True)
class TableFile:
    """A table that can be read more than once.

    Attributes:
        path: of its file.
        types: of its columns by name; all are texts in a CSV file.
        is_typed: whether the file itself says these.
        portions: makes its record batches, in order.
        defects: what is wrong with it; rows count from 1 below the names.
        numbers: of the rows that the portions have, where some could not be read.
        unnamed: names given to columns that have none.
        separator: of columns in a CSV file.
    """

    path: Path
    types: dict[str, Any]
    is_typed: bool
    portions: Callable[[], Iterator[Any]]
    defects: Defects
    numbers: NDArray[np.int64] | None = None
    unnamed: tuple[str, ...] = ()
    separator: str = ","

    def row(self, place: int) -> int:
        """The number of a row by its place among those of the portions."""
        return place + 1 if self.numbers is None else int(self.numbers[place])


def open_table(path: Path, settings: DataSettings, expected: Sequence[str] = ()) -> TableFile:
    """Open a .csv, .tsv (perhaps with .gz, .bz2 or .xz) or .parquet file; `expected` are names that it must have.

    A CSV file is read as a whole. What separates its columns, and whether its first line names them, is told by its
    first lines.

    Raises:
        DataError: it is no such file, or has no names of columns.
    """
    with _explained(path):
        is_parquet = path.suffix.lower() == ".parquet"
        return _open_parquet(path) if is_parquet else _open_csv(path, settings, expected)


def count_rows(path: Path, most_bytes: int, settings: DataSettings) -> int | None:
    """Number of rows: that of a Parquet file by its metadata, that of a CSV file of at most `most_bytes` by reading.

    None for larger or compressed CSV files.

    Raises:
        DataError: see `open_table`.
    """
    if path.suffix.lower() == ".parquet":
        with _explained(path):
            return int(pa_parquet.read_metadata(path).num_rows)
    if path.suffix.lower() not in {".csv", ".tsv"} or path.stat().st_size > most_bytes:
        return None
    return sum(map(len, open_table(path, settings).portions()))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable table: {' '.join(str(error).split())}") from None


def _open_parquet(path: Path) -> TableFile:
    def portions() -> Iterator[Any]:
        with _explained(path), pa_parquet.ParquetFile(path) as opened:
            for batch in opened.iter_batches(batch_size=_PORTION):
                yield batch.rename_columns(names)

    with pa_parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
    defects = Defects(str(path), "row")
    names = _distinct(schema.names, defects)
    return TableFile(path, dict(zip(names, schema.types, strict=True)), True, portions, defects)


def _distinct(names: Sequence[str], defects: Defects) -> list[str]:
    """The names, with a number behind those that are there already, which is a defect."""
    counts = Counter(names)
    for name, count in counts.items():
        if count > 1:
            defects.of_data(Fault(f"{count} columns are called {name!r}", "give each its own name"))
    return [name if names.index(name) == place else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _open_csv(path: Path, settings: DataSettings, expected: Sequence[str]) -> TableFile:
    content = read_csv_text(path, settings.encoding)
    form = _form(path, content, settings, expected)
    head = content[: _SNIFFED_BYTES + 4].decode("utf-8", "ignore")
    rows = content[len(head[: form.start].encode()) :]
    del content
    defects = Defects(str(path), "row")
    if b'"' in rows:
        _check_quotes(rows, form.separator, defects)
    if re.search(rb"[%s] +\"" % re.escape(form.separator.encode()), rows):
        rows = _without_blanks(rows, form.separator)
    kept = [place for place in range(len(form.names)) if place not in form.empty]
    names = _distinct([form.names[place] for place in kept], defects)
    table, numbers = _texts(rows, form, kept, defects)
    table = table.rename_columns(names)
    return TableFile(
        path,
        dict.fromkeys(names, pa.string()),
        False,
        lambda: iter(table.to_batches(max_chunksize=_PORTION)),
        defects,
        numbers,
        tuple(form.names[place] for place in form.unnamed),
        form.separator,
    )


def _form(path: Path, content: bytes, settings: DataSettings, expected: Sequence[str]) -> CsvForm:
    head = content[:_SNIFFED_BYTES]
    if len(content) > len(head):
        head = head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1] or head
    tabs = ".tsv" in [suffix.lower() for suffix in path.suffixes]
    try:
        return form_of(head.decode("utf-8", "ignore"), header=settings.header, tabs=tabs, expected=expected)
    except NoNamesError as error:
        raise DataError(f"{path}: {error}") from None


def _without_blanks(rows: bytes, separator: str) -> bytes:
    """Rows without blanks before quotes, which are no quotes else."""
    written = io.StringIO()
    reader = csv.reader(io.StringIO(rows.decode(), newline=""), delimiter=separator, skipinitialspace=True)
    try:
        csv.writer(written, delimiter=separator, lineterminator="\n").writerows(reader)
    except csv.Error:
        return rows
    return written.getvalue().encode()


def _texts(rows: bytes, form: CsvForm, kept: Sequence[int], defects: Defects) -> tuple[Any, Any]:
    """All rows that have as many fields as there are names, as texts, and their numbers where others have not."""
    places = [str(place) for place in range(len(form.names))]
    included = [places[place] for place in kept]
    if not rows.strip():
        return pa.table({place: pa.array([], pa.string()) for place in included}), None
    ragged: dict[int, tuple[int, str]] = {}

    def note(row: Any) -> str:
        ragged[row.number] = row.actual_columns, row.text or ""
        return "skip"

    table = pa_csv.read_csv(
        pa.py_buffer(rows),
        read_options=pa_csv.ReadOptions(column_names=places, use_threads=False, block_size=_BLOCK),
        parse_options=pa_csv.ParseOptions(
            delimiter=form.separator, newlines_in_values=True, invalid_row_handler=note
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(places, pa.string()),
            include_columns=included,
            null_values=list(_MISSING),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if not ragged:
        return table, None
    fault = Fault(
        f"has another number of fields than the {len(places)} names", "mend it, or quote what has separators"
    )
    defects.of_samples(fault, ragged, [f"{fields}: {text}" for fields, text in ragged.values()])
    numbers = np.setdiff1d(np.arange(1, len(table) + len(ragged) + 1), np.array(list(ragged)))
    return table, numbers[: len(table)]


def _check_quotes(rows: bytes, separator: str, defects: Defects) -> None:
    """Note a quote that is not closed, or text behind one, where the looks of quotes do not rule that out.

    PyArrow reads on, over all lines that follow.
    """
    mark = re.escape(separator.encode())
    inside = re.search(rb"[^%s\r\n\"]\"[^%s\r\n\"]|\"\"" % (mark, mark), rows)
    if inside is None and rows.count(b'"') % 2 == 0 and not _spans_lines(rows):
        return
    reader = csv.reader(
        io.StringIO(rows.decode(), newline=""), delimiter=separator, strict=True, skipinitialspace=separator != "\t"
    )
    number = 0
    try:
        for number, _ in enumerate(reader, 1):  # noqa: B007 - told below
            pass
    except csv.Error as error:
        fault = f"row {number + 1} has a quote that is not closed, or text behind it ({error})"
        defects.of_data(Fault(fault, "double quotes inside quotes"))


def _spans_lines(rows: bytes) -> bool:
    """Whether a line has an odd number of quotes: what is quoted goes on in the next one."""
    return any(line.count(b'"') % 2 for line in rows.splitlines())
