"""Tables as people write them: numbers in other dress, odd headers and separators, missing values, encodings."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.reading import inputs_of, targets_of

from taihu.core.base.errors import DataError
from taihu.core.job import Job
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.load import load_dataset
from taihu.worker.data.own.tables.dress import Decimal, parse_number
from taihu.worker.engine import Linear, Model, Sequential
from taihu.worker.saved.inputs import read_samples
from taihu.worker.saved.metadata import parse_metadata
from taihu.worker.saved.writing import describe_model

HALVES = [row / 2 for row in range(40)]
REST = "".join(f";{row % 4};{'xy'[row % 2]}\n" for row in range(40)).splitlines()


def loaded(path: Path, **given: Any) -> Dataset:
    return load_dataset(DataSettings.model_validate({"name": str(path), **given}))


def whole(dataset: Dataset) -> NDArray[np.float32]:
    """Raw inputs of both parts in the order of the file."""
    order = np.argsort(np.concatenate([dataset.train.rows, dataset.test.rows]))  # type: ignore[attr-defined]
    return np.concatenate([inputs_of(dataset, part) for part in (dataset.train, dataset.test)])[order]


def written(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path / name


def failure(path: Path, **given: Any) -> str:
    with pytest.raises(DataError) as caught:
        loaded(path, **given)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 2000
    return message.removeprefix(f"{path}: ")


DRESSES: dict[str, tuple[list[str], Sequence[float]]] = {
    "decimal comma": ([f"{v:.1f}".replace(".", ",") for v in HALVES], HALVES),
    "both": ([f"{1000 + v:,.1f}".replace(",", "_").replace(".", ",").replace("_", ".") for v in HALVES],
             [1000 + v for v in HALVES]),
    "thousands": ([f"{1e6 + v:,.0f}" for v in range(40)], [1e6 + v for v in range(40)]),
    "blanks": ([f"{1e6 + v:,.0f}".replace(",", "\u202f") for v in range(40)], [1e6 + v for v in range(40)]),
    "apostrophes": ([f"{1e6 + v:,.2f}".replace(",", "'") for v in HALVES], [1e6 + v for v in HALVES]),
    "percent": ([f"{v} %" for v in range(40)], [v / 100 for v in range(40)]),
    "money": ([f"${v:.2f}" for v in HALVES], HALVES),
    "euro": ([f"{v:.2f} €".replace(".", ",") for v in HALVES], HALVES),
    "accounts": ([f"({v:.1f})" for v in HALVES], [-v for v in HALVES]),
    "plus": ([f"+{v}" for v in HALVES], HALVES),
    "power": ([f"{v:E}" for v in HALVES], HALVES),
    "minus sign": ([f"\u2212{v}" for v in HALVES], [-v for v in HALVES]),
    "dates": ([f"2024-02-{1 + v % 28:02}" for v in range(40)], [1706745600.0 + 86400 * (v % 28) for v in range(40)]),
    "moments": ([f"2024-02-01T00:{v:02}:30+01:00" for v in range(40)], [1706742030.0 + 60 * v for v in range(40)]),
    "hexadecimal": ([hex(v) for v in range(40)], list(range(40))),
    "truth": ([("TRUE", "false")[v % 2] for v in range(40)], [float(1 - v % 2) for v in range(40)]),
}  # fmt: skip


@pytest.mark.parametrize("dress", DRESSES)
def test_numbers_in_other_dress(tmp_path: Path, dress: str) -> None:
    texts, values = DRESSES[dress]
    path = written(tmp_path, "a;b;c\n" + "".join(f"{a}{b}\n" for a, b in zip(texts, REST, strict=True)))
    dataset = loaded(path)
    assert dataset.columns == (("a", ()), ("b", ()))
    np.testing.assert_allclose(whole(dataset)[:, 0].astype(np.float64), values, rtol=1e-7, atol=1e-4)
    # The same as the column to predict: values, or as many classes as there are whole numbers.
    rows = [f"{row % 4};{a}" for row, a in enumerate(texts)]
    target = loaded(written(tmp_path, "b;y\n" + "\n".join(rows), "y.csv"))
    is_whole = dress in {"truth", "thousands", "blanks", "hexadecimal"}
    assert (target.targets, target.outputs) == (("classes", len(set(values))) if is_whole else ("values", 1))


@pytest.mark.parametrize(
    ("texts", "fragment"),
    [
        ([f'"{1000 + v:,}"' for v in range(40)], "column a looks like numbers, but '1,000' may be 1000 or 1;"),
        ([f"{1 + v % 9}.{v:03};" for v in range(40)], "column a looks like numbers, but '1.000' may be 1 or 1000;"),
        ([f"{v}" for v in range(39)] + ["1O5"], "row 40 ('1O5'), column a: is no number, unlike others"),
        ([f"{v}" for v in HALVES[:-1]] + ["?"], "row 40, column a: the value is missing"),
        ([f"{v} %" for v in range(1, 40)] + ["7"], "row 40 ('7'), column a: has no % behind it, unlike others"),
        (["True", "False"] * 20 + ["1O5"], "row 41 ('1O5'), column a: is no number, unlike others"),
        ([f"<{v}.5" for v in range(40)], "column a looks like numbers, dates or measures in a form that is not read"),
        ([f"{v} kg" for v in range(40)], "column a looks like numbers, dates or measures in a form that is not read"),
        ([f"{1 + v % 28}.{1 + v % 12}.2024" for v in range(40)], "column a looks like numbers, dates or measures"),
        ([f"2024-02-{1 + v % 28:02}" for v in range(39)] + ["2024-02-31"], "('2024-02-31'), column a: is no date"),
    ],
)
def test_what_only_looks_like_numbers_is_refused(tmp_path: Path, texts: list[str], fragment: str) -> None:
    mark = ";" if texts[0].endswith(";") else ","
    rows = [[text.rstrip(";"), str(row % 4), str(row % 2)] for row, text in enumerate(texts)]
    path = written(tmp_path, "\n".join(map(mark.join, [["a", "b", "c"], *rows])))
    assert fragment in failure(path)
    dataset = loaded(path, texts="a")  # as texts they are what they are
    assert len(dataset.columns[0][1]) == len(set(texts))


def test_thousands_beside_hundreds(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n" + "".join(f'"{v * 517:,}",{v % 2}\n' for v in range(40)))
    np.testing.assert_array_equal(whole(loaded(path))[:, 0], np.arange(40) * 517)


def test_what_stands_before_decimals_can_be_told(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n" + "".join(f'"{1 + v % 9},{v:03}",{v % 2}\n' for v in range(40)))
    for decimal, unit in ((".", 1000), (",", 1)):
        expected = [(1 + v % 9 + v / 1000) * unit for v in range(40)]
        np.testing.assert_allclose(whole(loaded(path, decimal=decimal))[:, 0], expected, rtol=1e-6)


@settings(deadline=None, max_examples=200)
@given(
    value=st.decimals(-(10**9), 10**9, places=3), decimal=st.sampled_from([".", ","]),
    group=st.sampled_from(["", " ", "'", "_", "other"]), around=st.sampled_from(["{}", " {} ", "${}", "{} €", "+{}"]),
)  # fmt: skip
def test_what_is_written_is_read(value: Any, decimal: Decimal, group: str, around: str) -> None:
    other = "." if decimal == "," else ","
    text = (
        f"{abs(value):,}".replace(",", "G").replace(".", decimal).replace("G", other if group == "other" else group)
    )
    text = around.format(text)
    if value < 0:
        text = f"({text.strip().lstrip('+')})"
    number = parse_number(text, decimal)
    assert number is not None
    assert number.value == float(value)


ROWS = [f"{v},{v % 4},{'xy'[v % 2]}" for v in range(40)]


def lines(header: str, rows: list[str] = ROWS, end: str = "\n") -> str:
    return end.join([header, *rows, ""])


FILES = {
    "blanks": lines("a, b, c", [row.replace(",", ", ") for row in ROWS]),
    "comment": "# made by a meter\n# of a, b\n" + lines("a,b,c"),
    "names in a comment": lines("# a,b,c"),
    "trailing commas": lines("a,b,c,", [f"{row}," for row in ROWS]),
    "commas behind rows": lines("a,b,c", [f"{row}," for row in ROWS]),
    "blank lines": "\n\n" + lines("a,b,c", [row + "\n" for row in ROWS]),
    "quotes": lines('"a";"b";"c"', [";".join(f'"{each}"' for each in row.split(",")) for row in ROWS]),
    "blanks before quotes": lines("a, b, c", [", ".join(f'"{each}"' for each in row.split(",")) for row in ROWS]),
    "returns": lines("a,b,c", end="\r"),
    "both ends": lines("a,b,c", end="\r\n"),
    "bars": lines("a,b,c").replace(",", "|"),
    "tabs": lines("a,b,c").replace(",", "\t"),
    "excel": "sep=;\n" + lines("a,b,c").replace(",", ";"),
    "utf-8": "\ufeff" + lines("a,b,c"),
}


@pytest.mark.parametrize("form", [*FILES, "utf-16-le", "utf-16-be", "gz", "bz2", "xz", "tsv"])
def test_files_are_read_as_they_look(tmp_path: Path, form: str) -> None:
    text = FILES.get(form, lines("a,b,c"))
    packed: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    if form in packed:
        path = written(tmp_path, packed[form](text.encode()), f"t.csv.{form}")
    elif form.startswith("utf-16"):
        path = written(tmp_path, ("\ufeff" + text).encode(form))
    else:
        path = written(tmp_path, text, "t.tsv" if form == "tsv" else "t.csv")
    dataset = loaded(path)
    assert dataset.columns == (("a", ()), ("b", ()))
    assert dataset.class_names == ("x", "y")
    np.testing.assert_array_equal(whole(dataset), [[v, v % 4] for v in range(40)])


def test_separators_in_names_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path, "size (m, outer, max)\tb\n" + "".join(f"{v}\t{v % 2}\n" for v in range(40)), "t.tsv")
    assert loaded(path).columns == (("size (m, outer, max)", ()),)
    path = written(tmp_path, '"a, b, c, d";"e"\n' + "".join(f"{v};{v % 2}\n" for v in range(40)))
    assert loaded(path).columns == (("a, b, c, d", ()),)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("".join(f"{v},{v % 2}\n" for v in range(40)), "its first line, '0, 0', looks like a row"),
        (lines("5.0,3.0,x"), "its first line, '5.0, 3.0, x', looks like a row"),
        (lines("a,a,c"), "2 columns are called 'a'; give each its own name"),
        (lines(",a,c"), "column 1 has no name, as columns of row numbers have; name it, or set data.drop"),
        (lines("a,b,c", [*ROWS, "1,2"]), "row 41 ('2: 1,2'): has another number of fields than the 3 names"),
        (lines("a,b,c", [*ROWS, '1,2,"x', "1,2,y"]), "row 41 has a quote that is not closed"),
        (lines("a,b,c", [*ROWS, '1,2,""x"', "1,2,y"]), "row 41 has a quote that is not closed, or text behind it"),
        (lines("a,b,c", [*ROWS, ",,"]), "row 41: no value is there in the whole row; delete it"),
        (lines("gr\u00f6\u00dfe,b,c").encode("cp1252"), "line 1 has the byte 0xf6, which is no UTF-8; set"),
        (lines("a,b,c").encode("utf-16-le"), "as in UTF-16 without a mark; set data.encoding = 'utf-16-le'"),
        (b"PK\x03\x04\x14\0" + bytes(100), "not a readable table: it is a zip file, as .xlsx files are"),
        (b"PAR1" + bytes(100), "not a readable table: it is a Parquet file; name it .parquet"),
        (b"a,b\n1,2\n3,\0\n", "line 3 has a zero byte"),
        ("<!DOCTYPE html><html>", "it is a web page; download the file itself"),
        ("a\n1\n2\n", "a is its only column; columns are separated by comma, semicolon, tab or |"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_said_in_one_line(tmp_path: Path, text: str | bytes, fragment: str) -> None:
    assert fragment in failure(written(tmp_path, text))


def test_whether_there_are_names_can_be_told(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(ROWS))
    dataset = loaded(path, header=False)
    assert dataset.columns == (("column 1", ()), ("column 2", ()))
    np.testing.assert_array_equal(whole(dataset), [[v, v % 4] for v in range(40)])
    path = written(tmp_path, lines("2019,2020,x"))
    assert loaded(path, header=True).columns == (("2019", ()), ("2020", ()))


def test_other_encodings_can_be_told(tmp_path: Path) -> None:
    path = written(tmp_path, lines("gr\u00f6\u00dfe,b,c").encode("cp1252"))
    assert loaded(path, encoding="cp1252").columns[0] == ("gr\u00f6\u00dfe", ())
    assert "is not written in ascii, as data.encoding says" in failure(path, encoding="ascii")


def test_all_defects_are_told_at_once_and_may_be_left_out(tmp_path: Path) -> None:
    rows = [*ROWS, "1,2", "?,1,x", ",1,x", "inf,1,x", "7,1e40,y"]
    path = written(tmp_path, lines("a,b,c", rows))
    message = failure(path)
    for fragment in (
        "row 41 ('2: 1,2')",
        "column a: the value is missing, 2 rows: 42, 43",
        "row 44, column a: the value is not finite",
        "row 45, column b: the value is too large",
        "4 kinds of defects",
        "skip_bad = 5",
    ):
        assert fragment in message  # fmt: skip
    assert "data.skip_bad = 5, which is 4" in failure(path, skip_bad=4)
    dataset = loaded(path, skip_bad=5)
    np.testing.assert_array_equal(whole(dataset), [[v, v % 4] for v in range(40)])
    assert dataset.left_out.startswith(f"5 rows left out by data.skip_bad: {path}: 4 kinds of defects")


@pytest.mark.parametrize(
    ("fill", "number", "text"),
    [
        (["mean", "c=most"], "mean", "x"),
        (["median", "c=none there"], "median", "none there"),
        ("most", 3.0, "x"),
        (["a=-1.5", "c=x"], -1.5, "x"),
    ],
)
def test_missing_values_are_filled(tmp_path: Path, fill: Any, number: Any, text: str) -> None:
    values = [None if row % 7 == 0 else float(row % 4) if row % 5 else 3.0 for row in range(60)]
    texts = [None if row % 11 == 0 else "xxy"[row % 3] for row in range(60)]
    rows = [
        f"{'' if a is None else a},{c or ''},{row % 2}" for row, (a, c) in enumerate(zip(values, texts, strict=True))
    ]
    dataset = loaded(written(tmp_path, lines("a,c,y", rows)), fill=fill)
    rows_of_training = [values[row] for row in dataset.train.rows]  # type: ignore[attr-defined]
    known = [value for value in rows_of_training if value is not None]
    if isinstance(number, str):
        number = np.mean(known) if number == "mean" else np.median(known)
    got = whole(dataset)
    np.testing.assert_allclose(got[:, 0], [number if value is None else value for value in values], rtol=1e-6)
    categories = dataset.columns[1][1]
    assert [categories[place] for place in got[:, 1:].argmax(axis=1)] == [each or text for each in texts]


def test_columns_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, lines("a,b,c", [f"t{v}{row[row.index(',') :]}" for v, row in enumerate(ROWS * 3)]))
    assert "column a has more than 100 different texts" in failure(path)
    assert loaded(path, drop="a").columns == (("b", ()),)
    message = failure(path, drop=["aa"], texts=["d"], fill=["e=1"])
    assert "no column 'aa' for data.drop; did you mean a?" in message
    assert "no column 'd' for data.texts" in message
    assert "no column 'e' for data.fill" in message


TRAIN = [f"{'A' if v % 3 else ''}{10 + v % 5},{v / 2},{v % 28 + 1:02},{v % 2}" for v in range(40)]


def as_rows(rows: list[str]) -> str:
    return lines("code,size,day,y", [f"{a},{b},2024-02-{c},{y}" for a, b, c, y in (row.split(",") for row in rows)])


def test_the_next_file_is_read_as_the_first_one(tmp_path: Path) -> None:
    """Codes that are all digits there stay texts, numbers that are all whole or missing stay numbers."""
    (tmp_path / "d").mkdir()
    written(tmp_path / "d", as_rows(TRAIN), "train.csv")
    only_digits = [row for row in TRAIN if row[0] != "A"]
    written(tmp_path / "d", as_rows(only_digits), "test.csv")
    dataset = loaded(tmp_path / "d", fill="median")
    texts = dataset.columns[0][1]
    assert texts == tuple(sorted({row.partition(",")[0] for row in TRAIN}))
    got = inputs_of(dataset, dataset.test)
    assert [texts[place] for place in got[:, : len(texts)].argmax(axis=1)] == [row[:2] for row in only_digits]
    saved = describe_model(
        Job(), dataset, Model(Sequential([Linear(2)]), dataset.input_shape, dataset.outputs), 1
    )  # fmt: skip
    saved = parse_metadata(saved.to_metadata())
    later = tmp_path / "later.csv"
    later.write_text("day;code;size\n2024-02-03;12;NA\n;10;7\n2024-02-05;A11;1,5\n")
    (samples,) = read_samples([later], saved, 10)
    known = dict(zip(("code", "size", "day"), (column.fill for column in saved.reading.columns), strict=True))
    assert isinstance(known["size"], float)
    assert isinstance(known["day"], float)
    np.testing.assert_allclose(samples.inputs[:, -2], [known["size"], 7, 1.5])
    np.testing.assert_allclose(samples.inputs[:, -1], [1706918400, known["day"], 1707091200])
    assert [texts[place] for place in samples.inputs[:, :-2].argmax(axis=1)] == ["12", "10", "A11"]
    later.write_text("day,code,size\n2024-02-03,zz,x\n")
    with pytest.raises(DataError, match=r"row 1 \('zz'\), column code: does not occur") as caught:
        list(read_samples([later], saved, 10))
    assert "row 1 ('x'), column size: is no number" in str(caught.value)


def test_a_table_is_evaluated_as_the_model_was_trained(tmp_path: Path) -> None:
    """Texts and classes of a model keep their places, though a file has some of them alone, in another order."""
    rows = [f"{'zyx'[v % 3]}0{v % 4},{v / 2 + 1e7},{(7, 8, 10)[v % 3]}" for v in range(60)]
    dataset = loaded(written(tmp_path, lines("code,size,y", rows)), fill=["size=mean"])
    saved = describe_model(
        Job(), dataset, Model(Sequential([Linear(3)]), dataset.input_shape, dataset.outputs), 1
    )  # fmt: skip
    known = parse_metadata(saved.to_metadata()).as_trained
    few = [row for row in rows if row.endswith(("8", "10")) and row[0] != "z"]
    again = load_dataset(
        DataSettings(name=str(written(tmp_path, lines("code,size,y", few), "few.csv")), skip_bad=9), known=known
    )
    assert again.columns == dataset.columns
    assert again.class_names == dataset.class_names == ("7", "8", "10")
    texts = dataset.columns[0][1]
    assert [texts[place] for place in whole(again)[:, : len(texts)].argmax(axis=1)] == [row[:3] for row in few]
    numbers = {"8": 1, "10": 2}
    order = np.argsort(np.concatenate([again.train.rows, again.test.rows]))  # type: ignore[attr-defined]
    targets = np.concatenate([targets_of(again.train), targets_of(again.test)])[order]
    assert targets.tolist() == [numbers[row.rpartition(",")[2]] for row in few]
    written(tmp_path, lines("code,size,y", [*few, "x01,5,9"]), "few.csv")
    with pytest.raises(DataError, match=r"row \d+ \('9'\), column y: this class has no row for training"):
        load_dataset(DataSettings(name=str(tmp_path / "few.csv")), known=known)


def test_a_model_of_a_file_without_names(tmp_path: Path) -> None:
    job = Job.model_validate({"data": {"name": "t.csv", "header": False}})
    dataset = loaded(written(tmp_path, "\n".join(ROWS)), header=False)
    saved = describe_model(job, dataset, Model(Sequential([Linear(2)]), (2,), 2), 1)
    saved = parse_metadata(saved.to_metadata())
    (samples,) = read_samples([written(tmp_path, "7,8\n9,1\n", "later.csv")], saved, 10)
    assert samples.inputs.tolist() == [[7, 8], [9, 1]]


def test_dates_of_parquet_files(tmp_path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - not in every process that collects this test
    import pyarrow.parquet as pq  # noqa: PLC0415

    moments = np.datetime64("2024-02-01T00:00:00", "us") + np.arange(40) * np.timedelta64(1_500_000, "us")
    table = pa.table(
        {
            "ns": pa.array(moments.astype("datetime64[ns]"), pa.timestamp("ns", tz="UTC")),
            "day": pa.array(moments.astype("datetime64[D]")),
            "for": pa.array(np.arange(40), pa.duration("ms")),
            "codes": pa.array([f"{v:03}" for v in range(40)]),
            "y": np.arange(40) % 2,
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    dataset = loaded(tmp_path / "t.parquet")
    got = whole(dataset).astype(np.float64)
    np.testing.assert_allclose(got[:, 0], 1706745600 + 1.5 * np.arange(40), atol=64)
    np.testing.assert_allclose(got[:, 1], 1706745600.0)
    np.testing.assert_allclose(got[:, 2], np.arange(40) / 1000, rtol=1e-6)
    assert len(dataset.columns[3][1]) == 40


def test_anything_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    alphabet = ['"', ",", ";", "\t", "\n", "\r", "1", "2.5", "a", "x y", "é", "#", "=", " ", "?", "\0", "-", "%"]
    for _ in range(100):
        stream = io.StringIO()
        stream.write("".join(rng.choice(alphabet, rng.integers(1, 60))))
        path = written(tmp_path, stream.getvalue())
        try:
            loaded(path)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017 - what is not refused is right, too
