"""Tables of the user's own: features and targets against those of the rows, and mistakes by row and column."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.reading import inputs_of, targets_of

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.sources import check_sources
from taihu.worker.data.load import load_dataset

Rows = list[dict[str, Any]]

COLOURS = ("red", "green", "blue")
COLUMNS = ("size", "count", "colour", "fresh", "price")
ROW = st.fixed_dictionaries(
    {
        "size": st.floats(-1e3, 1e3, width=32),
        "count": st.integers(-5, 5),
        "colour": st.sampled_from(COLOURS),
        "fresh": st.booleans(),
        "price": st.floats(0, 100, width=32),
    }
).map(lambda row: {name: row[name] for name in COLUMNS})


@pytest.fixture(autouse=True, scope="module")
def _small_portions() -> Iterator[None]:
    """Tables of the tests have several portions."""
    with patch("taihu.worker.data.own.tables.table_files._PORTION", 3):
        yield


def text_of(rows: Rows, delimiter: str = ",") -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def write(path: Path, rows: Rows) -> Path:
    if path.suffix == ".parquet":
        import pyarrow as pa  # noqa: PLC0415 - not in every process that collects this test
        import pyarrow.parquet as pq  # noqa: PLC0415

        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text_of(rows).encode()))
    else:
        path.write_text(text_of(rows, "\t" if path.suffix == ".tsv" else ","), encoding="utf-8")
    return path


def loaded(path: Path, **given: Any) -> Dataset:
    return load_dataset(DataSettings.model_validate({"name": str(path), **given}))


def failure(path: Path, **given: Any) -> str:
    with pytest.raises(DataError) as caught:
        loaded(path, **given)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def features(row: dict[str, Any], target: str, colours: list[str]) -> list[float]:
    numbers: list[float] = []
    for name in COLUMNS:
        value = row[name]
        if name == target:
            continue
        numbers += [value == colour for colour in colours] if name == "colour" else [float(value)]
    return numbers


def whole(dataset: Dataset) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Inputs and targets of both parts together, in the order of the file."""
    order = np.argsort(np.concatenate([dataset.train.rows, dataset.test.rows]))  # type: ignore[attr-defined]
    parts = (dataset.train, dataset.test)
    inputs = np.concatenate([inputs_of(dataset, part) for part in parts])
    return inputs[order], np.concatenate([targets_of(part) for part in parts])[order]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@settings(deadline=None, max_examples=25)
@given(rows=st.lists(ROW, min_size=4, max_size=20), target=st.sampled_from(["price", "colour", "fresh", "count"]))
def test_columns_become_features_and_targets(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, rows: Rows, target: str
) -> None:
    path = write(tmp_path_factory.mktemp("table") / f"table{suffix}", rows)
    if target != "price" and len({row[target] for row in rows}) == 1:
        assert "expected at least two classes" in failure(path, target=target)
        return
    dataset = loaded(path, target=target)
    inputs, targets = whole(dataset)
    colours = sorted({row["colour"] for row in rows})
    np.testing.assert_allclose(inputs, [features(row, target, colours) for row in rows], rtol=1e-6, atol=1e-3)
    if target == "price":
        assert (dataset.targets, dataset.outputs) == ("values", 1)
        np.testing.assert_allclose(targets[:, 0], [row["price"] for row in rows], rtol=1e-6)
        return
    known = sorted({row[target] for row in rows})
    assert (dataset.targets, dataset.outputs) == ("classes", len(known))
    names = [str(int(value)) if isinstance(value, bool) else str(value) for value in known]
    assert dataset.class_names == tuple(names)
    assert targets.tolist() == [known.index(row[target]) for row in rows]


NUMBERS: Rows = [{"a": float(n), "b": n % 4 + 1, "c": n / 2} for n in range(12)]


def test_the_last_column_is_the_target(tmp_path: Path) -> None:
    dataset = loaded(write(tmp_path / "t.csv", NUMBERS))
    assert (dataset.targets, dataset.input_shape, dataset.outputs) == ("values", (2,), 1)
    np.testing.assert_allclose(whole(dataset)[1][:, 0], np.arange(12) / 2)
    train = inputs_of(dataset, dataset.train).astype(np.float64)
    np.testing.assert_allclose(dataset.mean, train.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(dataset.scale, train.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("task", "kind", "outputs"), [("auto", "classes", 4), ("classes", "classes", 4), ("values", "values", 1)]
)
def test_whole_numbers_are_classes_unless_told_otherwise(tmp_path: Path, task: str, kind: str, outputs: int) -> None:
    dataset = loaded(write(tmp_path / "t.csv", NUMBERS), target="b", task=task)
    assert (dataset.targets, dataset.outputs) == (kind, outputs)
    assert dataset.class_names == (("1", "2", "3", "4") if kind == "classes" else ())


def test_many_whole_numbers_need_a_word(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"a": 0.5, "b": n} for n in range(101)])
    assert "column b has 101 different whole numbers; set data.task = 'values'" in failure(path)
    assert loaded(path, task="classes").outputs == 101
    assert loaded(path, task="values").outputs == 1


@pytest.mark.parametrize("name", ["t.tsv", "t.csv.gz", "T.CSV"])
def test_other_files_of_tables(tmp_path: Path, name: str) -> None:
    dataset = loaded(write(tmp_path / name, NUMBERS))
    np.testing.assert_allclose(whole(dataset)[1][:, 0], np.arange(12) / 2)


def test_semicolons_and_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\ufeff" + text_of(NUMBERS, ";"), encoding="utf-8")
    assert loaded(tmp_path / "t.csv", target="a").input_shape == (2,)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_folder_of_two_tables(tmp_path: Path, suffix: str) -> None:
    rows: Rows = [{"a": float(n), "kind": COLOURS[n % 3], "y": ("no", "yes")[n % 2]} for n in range(8)]
    write(tmp_path / f"train{suffix}", rows)
    write(tmp_path / f"test{suffix}", list(reversed(rows[:4])))
    check_sources(str(tmp_path), None)
    dataset = loaded(tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.class_names) == (8, 4, ("no", "yes"))
    assert targets_of(dataset.test).tolist() == [1, 0, 1, 0]
    assert inputs_of(dataset, dataset.test)[0].tolist() == [3, 0, 0, 1]
    write(tmp_path / f"test{suffix}", [{"a": 1.0, "kind": "pink", "y": "no"}])
    assert "row 1 ('pink'), column kind: does not occur" in failure_in(tmp_path)
    write(tmp_path / f"test{suffix}", [rows[0], {"a": 1.0, "kind": "red", "y": "maybe"}])
    assert "row 2 ('maybe'), column y: this class has no row for training" in failure_in(tmp_path)
    write(tmp_path / f"test{suffix}", [{"a": 1.0, "y": "no"}])
    assert "no column kind, which" in failure_in(tmp_path)
    write(tmp_path / f"test{suffix}", [{"a": "x", "kind": "red", "y": "no"}])
    assert "row 1 ('x'), column a: is no number" in failure_in(tmp_path)


def failure_in(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        loaded(folder)
    return str(caught.value)


def changed(row: int, **values: Any) -> Rows:
    rows = [dict(each) for each in NUMBERS]
    rows[row].update(values)
    return rows


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("rows", "fragment"),
    [
        (changed(6, a=None), "row 7, column a: the value is missing"),
        (changed(6, c=None), "row 7, column c: the value is missing"),
        (changed(6, a=float("inf")), "row 7, column a: the value is not finite"),
        (
            [{"a": f"t{n}", "b": n} for n in range(101)],
            "column a has more than 100 different texts, for example 't0'",
        ),
        ([{"a": 1.0, "b": f"t{n}"} for n in range(1001)], "column b has more than 1000 different texts"),
        ([{"a": 1.0}], "a is its only column"),
        ([{"a": 1.0, "b": "x"}] * 3, "column b is x in every row; expected at least two classes"),
    ],
)
def test_mistakes_have_row_and_column(tmp_path: Path, suffix: str, rows: Rows, fragment: str) -> None:
    assert fragment in failure(write(tmp_path / f"t{suffix}", rows))


def test_an_empty_text_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\nx,1.5\n"",2.5\n,3.5\n')
    assert "row 3, column a: the value is missing" in failure(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "not a readable table"),
        ("1,2.5\n1.0,3\n", "its first line, '1, 2.5', looks like a row"),
        ("a,b\n", "it has no rows"),
        ("a,b\n1,2\n1,2,3\n", "row 2 ('3: 1,2,3'): has another number of fields than the 2 names"),
        ("a,a\n1,2\n", "2 columns are called 'a'"),
        ("a,b\n1,x\n2,\xff\n", "line 3 has the byte 0xff, which is no UTF-8; set data.encoding"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, text: str, fragment: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    assert fragment in failure(tmp_path / "t.csv")


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", NUMBERS)
    path.write_bytes(path.read_bytes()[:-20])
    assert "not a readable table" in failure(path)


def test_a_target_that_is_no_column(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"size": 1.0, "price": 2.0}] * 3)
    assert "no column 'prize' for data.target; did you mean price?" in failure(path, target="prize")
    assert "no column 'xyz' for data.target; it has size, price" in failure(path, target="xyz")


def test_texts_are_no_values(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"a": 1.0, "b": "x"}, {"a": 1.0, "b": "y"}])
    assert "column b has texts, which are no values" in failure(path, task="values")


def test_vectors_have_no_size(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", NUMBERS)
    with pytest.raises(DataError, match=r"data.resize is for images .* the inputs are vectors of 2; leave it out"):
        loaded(path, resize="8x8")


def test_texts_in_a_dictionary_and_decimals(tmp_path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - not in every process that collects this test
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pa.table(
        {
            "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
            "exact": pa.array([1, 2, 3], pa.decimal128(9, 2)),
            "y": pa.array(["no", "yes", "no"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    dataset = loaded(tmp_path / "t.parquet")
    assert whole(dataset)[0].tolist() == [[1, 0, 1], [0, 1, 2], [1, 0, 3]]
    assert whole(dataset)[1].tolist() == [0, 1, 0]


def test_whole_numbers_beyond_those_of_an_int64(tmp_path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - not in every process that collects this test
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pa.table({"a": [1.0, 2.0], "y": pa.array([2**63 + 1, 1], pa.uint64())})
    pq.write_table(table, tmp_path / "t.parquet")
    assert "row 1, column y: is beyond whole numbers of 64 bits" in failure(tmp_path / "t.parquet")


def test_a_large_table_is_mapped_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", NUMBERS)
    expected = whole(loaded(path))
    monkeypatch.setattr("taihu.worker.data.own.tables.table._MOST_BYTES_IN_MEMORY", 50)
    dataset = loaded(path)
    assert isinstance(dataset.train.inputs.array, np.memmap)  # type: ignore[attr-defined]
    for seen, before in zip(whole(dataset), expected, strict=True):
        np.testing.assert_array_equal(seen, before)
