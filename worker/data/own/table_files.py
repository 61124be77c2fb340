"""Reading tables portion by portion: CSV files at once, Parquet files by row groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from taihu.errors import DataError

__all__ = ["TableFile", "count_rows", "open_table"]

_PORTION: Final = 65_536
_SNIFFED_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class TableFile:
    """A table that can be read more than once; `portions()` are its record batches in order."""

    path: Path
    schema: Any
    portions: Callable[[], Iterator[Any]]


def open_table(path: Path) -> TableFile:
    """Open a .csv, .tsv (perhaps with .gz) or .parquet file.

    A CSV file is read as a whole; what separates its columns is the commonest of comma, semicolon and tab in its
    first line.

    Raises:
        DataError: it is no such file, has columns without or of the same name, or no rows.
    """
    with _explained(path):
        table = _open_parquet(path) if path.suffix.lower() == ".parquet" else _open_csv(path)
    names = Counter(table.schema.names)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise DataError(f"{path}: {names[twice[0]]} columns are called {twice[0]!r}; give each its own name")
    if all(_is_number(name) for name in names):
        raise DataError(f"{path}: its first line has no names of columns; write them there")
    return table


def count_rows(path: Path, most_bytes: int) -> int | None:
    """Number of rows: that of a Parquet file by its metadata, that of a CSV file of at most `most_bytes` by reading.

    None for larger or compressed CSV files.

    Raises:
        DataError: see `open_table`.
    """
    if path.suffix.lower() == ".parquet":
        with _explained(path):
            return int(pa_parquet.read_metadata(path).num_rows)
    if path.suffix.lower() == ".gz" or path.stat().st_size > most_bytes:
        return None
    return sum(map(len, open_table(path).portions()))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable table: {' '.join(str(error).split())}") from None


def _open_parquet(path: Path) -> TableFile:
    def portions() -> Iterator[Any]:
        with _explained(path), pa_parquet.ParquetFile(path) as opened:
            yield from opened.iter_batches(batch_size=_PORTION)

    with pa_parquet.ParquetFile(path) as file:
        return TableFile(path, file.schema_arrow, portions)


def _open_csv(path: Path) -> TableFile:
    with pa.input_stream(str(path)) as stream:
        first_line = stream.read(_SNIFFED_BYTES).partition(b"\n")[0]
    delimiter = max(",;\t", key=lambda mark: first_line.count(mark.encode()))
    table = pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(delimiter=delimiter),
        convert_options=pa_csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
    )
    return TableFile(path, table.schema, lambda: iter(table.to_batches(max_chunksize=_PORTION)))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
