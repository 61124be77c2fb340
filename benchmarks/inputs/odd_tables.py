"""Odd tables against known values and pandas: `python -m benchmarks odd_tables`.

Each case is a CSV file with columns of numbers in one of many dresses, dates and texts, separated, quoted, encoded,
packed and commented in one of many ways, perhaps with missing values, or with something wrong. It is read as training
reads it. A case is right where every input is what was written, and pandas, told how the file is made, reads the same
numbers; or it is refused in one line that names the file. What is plain and whole must be right. Prints a row for
each oddity, and what went wrong; the exit code tells. Needs pandas, which is no dependency: pip install pandas
(`--without-pandas` leaves that half out).

Examples:
  python -m benchmarks odd_tables
  python -m benchmarks odd_tables --count 2000 --seed 7
  python -m benchmarks odd_tables --count 50 --keep /tmp/odd
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import lzma
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.load import load_dataset

__all__ = ["Case", "drawn", "main", "outcome_of"]

_ENCODINGS: Final = ("utf-8", "utf-8-sig", "utf-16", "cp1252")
_PACKED: Final[Mapping[str, Callable[[bytes], bytes]]] = MappingProxyType(
    {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
)
_TEXTS: Final = ("red", "dark green", "blue", "NA!", "x,y", 'say "no"', "größer", "007", "# 1", "a;b")
_FAULTS: Final = (
    "none",
    "none",
    "none",
    "none",
    "missing",
    "typo",
    "short row",
    "long row",
    "open quote",
    "no names",
)
Column = tuple[list[str], list[float] | list[str]]


@dataclass
class Case:
    """A file that was drawn.

    Attributes:
        path: of it.
        columns: expected values by name, nan of missing numbers; without the column to predict.
        fault: what is wrong with it.
        must_be_read: whether nothing is, so that it may not be refused.
        given: how it is made, for pandas.
        dresses: of its columns, for who looks into a case.
    """

    path: Path
    columns: dict[str, list[float] | list[str]] = field(default_factory=dict)
    fault: str = "none"
    must_be_read: bool = True
    given: dict[str, Any] = field(default_factory=dict)
    dresses: dict[str, str] = field(default_factory=dict)


def drawn(rng: np.random.Generator, folder: Path) -> Case:
    """Write a case into `folder`."""
    rows = int(rng.integers(20, 60))
    separator, decimal = str(rng.choice([",", ";", "\t", "|"])), str(rng.choice([".", ","]))
    encoding = str(rng.choice(_ENCODINGS, p=[0.55, 0.15, 0.15, 0.15]))
    packed = str(rng.choice(list(_PACKED), p=[0.7, 0.1, 0.1, 0.1]))
    case = Case(folder / f"odd.{'tsv' if separator == chr(9) and rng.random() < 0.5 else 'csv'}{packed}")
    case.given = {"sep": separator, "decimal": decimal, "encoding": encoding, "thousands": None}
    cells: dict[str, list[str]] = {}
    for place in range(int(rng.integers(2, 6))):
        dress = str(rng.choice(list(DRESSES)))
        if dress == "ambiguous" and separator == decimal == ",":
            dress = "grouped"  # 1.234 has decimals where commas separate, as for pandas: docs/data.md
        name = f"{rng.choice(['size', 'a b', 'größe', 'x,y', 'p;q'])} {place}"
        cells[name], case.columns[name] = DRESSES[dress](rng, rows, decimal)
        case.dresses[name] = dress
        if dress == "ambiguous":
            case.must_be_read = False
    cells["target"] = [("no", "yes")[row % 2] for row in range(rows)]
    case.fault = str(rng.choice(_FAULTS))
    _spoil(rng, case, cells)
    text = _written(rng, case, cells, separator)
    content = text.encode(encoding, "replace") if encoding != "cp1252" else text.encode("cp1252")
    if encoding == "cp1252" and not text.isascii():
        case.must_be_read = False  # data.encoding is asked for
    case.path.write_bytes(_PACKED[packed](content))
    return case


def _grouped(value: float, decimal: str, mark: str, places: int) -> str:
    return f"{value:,.{places}f}".replace(",", "G").replace(".", decimal).replace("G", mark)


def _numbers(form: Callable[[float, str], str], values: Callable[[np.random.Generator, int], NDArray[Any]]) -> Any:
    def column(rng: np.random.Generator, rows: int, decimal: str) -> Column:
        found = [float(value) for value in values(rng, rows)]
        return [form(value, decimal) for value in found], found

    return column


def _halves(rng: np.random.Generator, rows: int) -> NDArray[Any]:
    return rng.integers(-4000, 4000, rows) / 2


def _large(rng: np.random.Generator, rows: int) -> NDArray[Any]:
    return 1_000_000 + rng.integers(0, 10**7, rows) / 4


def _percent(rng: np.random.Generator, rows: int, decimal: str) -> Column:
    found = rng.integers(0, 1000, rows) / 10
    return [f"{each:.1f} %".replace(".", decimal) for each in found], [float(f"{each:.1f}e-2") for each in found]


def _days(rng: np.random.Generator, rows: int, decimal: str) -> Column:
    days = rng.integers(10_000, 20_000, rows)
    return [str(np.datetime64(int(day), "D")) for day in days], [float(day) * 86_400 for day in days]


def _moments(rng: np.random.Generator, rows: int, decimal: str) -> Column:
    seconds = 1_700_000_000 + rng.integers(0, 600, rows)
    return [f"{np.datetime64(int(each), 's')}Z" for each in seconds], [float(each) for each in seconds]


def _texts(rng: np.random.Generator, rows: int, decimal: str) -> Column:
    found = [str(each) for each in rng.choice(_TEXTS, rows)]
    return found, list(found)


def _codes(rng: np.random.Generator, rows: int, decimal: str) -> Column:
    found = [f"{'AB'[row % 2] if row % 3 else ''}{rng.integers(1, 9):03}" for row in range(rows)]
    return found, list(found)


def _truth(rng: np.random.Generator, rows: int, decimal: str) -> Column:
    found = rng.integers(0, 2, rows)
    return [("False", "True")[each] for each in found], [float(each) for each in found]


DRESSES: Final[Mapping[str, Callable[[np.random.Generator, int, str], Column]]] = MappingProxyType(
    {
        "whole": _numbers(lambda value, _: f"{value:.0f}", lambda rng, rows: rng.integers(-50, 50, rows)),
        "plain": _numbers(lambda value, decimal: f"{value:.1f}".replace(".", decimal), _halves),
        "grouped": _numbers(
            lambda value, decimal: _grouped(value, decimal, "." if decimal == "," else ",", 2), _large
        ),
        "blanks": _numbers(lambda value, decimal: _grouped(value, decimal, " ", 2), _large),
        "apostrophes": _numbers(lambda value, decimal: _grouped(value, decimal, "'", 2), _large),
        "money": _numbers(lambda value, decimal: f"€{_grouped(value, decimal, '', 2)}", _large),
        "brackets": _numbers(lambda value, _: f"({value:.0f})".replace("-", ""), lambda r, n: -r.integers(1, 99, n)),
        "power": _numbers(lambda value, decimal: f"{value:E}".replace(".", decimal), _halves),
        "plus": _numbers(lambda value, decimal: f"{value:+.1f}".replace(".", decimal), _halves),
        "ambiguous": _numbers(
            lambda value, decimal: _grouped(value, decimal, "." if decimal == "," else ",", 0),
            lambda rng, rows: rng.integers(1000, 9999, rows),
        ),
        "percent": _percent,
        "days": _days,
        "moments": _moments,
        "truth": _truth,
        "texts": _texts,
        "codes": _codes,
    }
)
_OF_PANDAS: Final = ("whole", "plain", "power", "plus")


def _spoil(rng: np.random.Generator, case: Case, cells: dict[str, list[str]]) -> None:
    """Put missing values or a typo into a column."""
    if case.fault not in {"missing", "typo"}:
        return
    case.must_be_read = False
    name = str(rng.choice(list(case.columns)))
    row = int(rng.integers(len(cells[name])))
    is_text = isinstance(case.columns[name][0], str)
    if case.fault == "typo" and is_text:
        case.fault = "missing"
    cells[name][row] = (
        "1O5" if case.fault == "typo" else str(rng.choice(["", "NA", "nan"] if is_text else ["?", "-", "NA"]))
    )
    column: list[Any] = case.columns[name]
    column[row] = "" if is_text else float("nan")


def _written(rng: np.random.Generator, case: Case, cells: dict[str, list[str]], separator: str) -> str:
    """The text of the file, with quotes where they are needed, or everywhere but around missing values."""
    quotes = bool(rng.random() < 0.3) and case.fault != "missing"
    blanks = separator != "\t" and rng.random() < 0.2
    end = str(rng.choice(["\n", "\r\n", "\r"], p=[0.6, 0.3, 0.1]))
    tail = separator if rng.random() < 0.15 else ""

    def cell(text: str) -> str:
        needed = quotes or any(mark in text for mark in (separator, '"', "\n"))
        return '"{}"'.format(text.replace('"', '""')) if needed else text

    join = f"{separator} " if blanks else separator
    lines = [join.join(map(cell, row)) + tail for row in zip(*cells.values(), strict=True)]
    names = join.join(map(cell, cells)) + tail
    place = int(rng.integers(5, len(lines)))
    faults = {
        "short row": lines[place].rpartition(separator)[0] if not tail else separator.join("12"),
        "long row": f"{lines[place]}{separator}more{separator}more",
        "open quote": f'"{lines[place]}',
    }
    if case.fault in faults:
        lines[place], case.must_be_read = faults[case.fault], False
    before = []
    if rng.random() < 0.2:
        before.append("# made by a meter")
        case.given["comment"] = True
    if case.fault == "no names":
        case.must_be_read = False
    else:
        before.append(names)
    case.given |= {"skipinitialspace": blanks, "tail": bool(tail)}
    return end.join([*before, *lines, ""])


def _whole(dataset: Dataset) -> NDArray[np.float64]:
    """Raw inputs of both parts in the order of the file."""
    parts: list[Any] = [dataset.train, dataset.test]
    found = []
    for part in parts:
        out = np.empty((len(part), *dataset.input_shape), np.float32)
        part.read(np.arange(len(part)), out)
        found.append(out.astype(np.float64) + (0 if dataset.offset is None else dataset.offset))
    return np.concatenate(found)[np.argsort(np.concatenate([part.rows for part in parts]))]


def outcome_of(case: Case, *, with_pandas: bool = False) -> tuple[str, str]:
    """`right`, `refused` or `wrong`, and words on it."""
    settings = DataSettings(name=str(case.path))
    try:
        dataset = load_dataset(settings)
    except DataError as error:
        message = str(error)
        fine = "\n" not in message and case.path.name in message and len(message) < 2500
        told = not case.must_be_read or _may_be_refused(message)
        return ("refused" if fine and told else "wrong"), message
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    if case.fault != "none":
        return "wrong", f"read, with {case.fault}"
    difference = _difference(case, dataset)
    if not difference and with_pandas:
        difference = _difference_of_pandas(case)
    return ("wrong", difference) if difference else ("right", "")


def _may_be_refused(message: str) -> bool:
    """A few rows may draw what is told apart by nothing: of decimals, or of texts that nearly all are numbers."""
    return "data.decimal" in message or "data.texts" in message or "expected at least two" in message


def _difference(case: Case, dataset: Dataset) -> str:
    """Words on the first column that is not as it was written; nothing where all are."""
    names = [name for name, _ in dataset.columns]
    expected_names = [" ".join(name.split()) for name in case.columns]
    if names != expected_names or dataset.class_names != ("no", "yes"):
        return f"columns {names}, expected {expected_names}; classes {dataset.class_names}"
    inputs, first = _whole(dataset), 0
    for (name, expected), (_, texts) in zip(case.columns.items(), dataset.columns, strict=True):
        got = inputs[:, first : first + (len(texts) or 1)]
        first += len(texts) or 1
        if isinstance(expected[0], str):
            found = [texts[place] for place in got.argmax(axis=1)] if texts else []
            if found != expected:
                return f"column {name!r} ({case.dresses[name]}): {found[:3]}, expected {expected[:3]}"
        elif texts or not np.allclose(got[:, 0], np.array(expected, float), rtol=1e-6, atol=1e-4):
            return f"column {name!r} ({case.dresses[name]}): {got[:3, 0]}, expected {expected[:3]}, texts {texts[:3]}"
    return ""


def _difference_of_pandas(case: Case) -> str:
    """The same for pandas, told how the file is made, and for columns whose numbers it reads."""
    import pandas as pd  # type: ignore[import-untyped,unused-ignore] # noqa: PLC0415 - no dependency

    given = case.given
    text = _unpacked(case.path).decode(given["encoding"])
    text = text.partition("meter")[2].lstrip() if given.get("comment") else text
    frame = pd.read_csv(
        io.StringIO(text), sep=given["sep"], decimal=given["decimal"], skipinitialspace=given["skipinitialspace"],
        index_col=False,
    )  # fmt: skip
    for (name, expected), column in zip(case.columns.items(), frame.columns, strict=False):
        of_numbers = case.dresses[name] in _OF_PANDAS
        if of_numbers and not np.allclose(frame[column].to_numpy(float), np.array(expected, float), rtol=1e-6):
            return f"column {name!r} ({case.dresses[name]}): pandas reads {frame[column].tolist()[:3]}"
    return ""


def _unpacked(path: Path) -> bytes:
    unpack = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
    return unpack(path.read_bytes())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder in which files of cases that are wrong are kept")
    parser.add_argument("--without-pandas", action="store_true", help="compare with known values alone")
    options = parser.parse_args(arguments)
    if not options.without_pandas:
        try:
            import pandas  # noqa: F401, PLC0415 - no dependency
        except ImportError:
            parser.error("pandas is not installed: pip install pandas, or leave it out by --without-pandas")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(options.count):
        with TemporaryDirectory(prefix="taihu-") as folder:
            case = drawn(np.random.default_rng([options.seed, number]), Path(folder))
            outcome, words = outcome_of(case, with_pandas=not options.without_pandas)
            for oddity in (case.fault, *set(case.dresses.values())):
                counts[oddity][outcome] += 1
            counts["all"][outcome] += 1
            if outcome == "wrong":
                print(f"case {number}: {case.fault}, {case.given}: {words.replace(folder, '')}")
                if options.keep is not None:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{number}-{case.path.name}").write_bytes(case.path.read_bytes())
        if number % 100 == 99 and sys.stderr.isatty():
            print(f"{number + 1} of {options.count}", file=sys.stderr)
    print(f"{'':12}{'right':>8}{'refused':>9}{'wrong':>7}")
    for name, each in sorted(counts.items()):
        print(f"{name:12}{each['right']:8}{each['refused']:9}{each['wrong']:7}")
    return 1 if counts["all"]["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
