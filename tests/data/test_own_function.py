"""Data from a function of the user's own: arrays, sequences read item by item, map-style sets, and their mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reading import inputs_of, targets_of

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset, evaluation_batches
from taihu.worker.data.base.sources import check_sources
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.data.own.function import dataset_of

HERE = Path(__file__)


class Items:
    """A map-style data set or a sequence that counts what is read."""

    def __init__(self, items: Any) -> None:
        self.items = items
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        assert type(row) is int
        self.read.append(row)
        return self.items[row]


def written(folder: Path, text: str, function: str = "load", **given: Any) -> DataSettings:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return DataSettings(name=f"{folder / 'mine.py'}:{function}", **given)


def failure(returned: Any, **given: Any) -> str:
    def read_all() -> None:
        dataset = made(returned, **given)
        for part in (dataset.train, dataset.test):
            inputs_of(dataset, part)

    with pytest.raises(DataError) as caught:
        read_all()
    message = str(caught.value)
    assert "\n" not in message
    return message


def made(returned: Any, **given: Any) -> Dataset:
    return dataset_of(returned, DataSettings(name="mine.py:load", **given), HERE)


@settings(deadline=None, max_examples=30)
@given(
    shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    dtype=st.sampled_from(["uint8", "float32", "float64"]),
    train=st.integers(3, 9),
    seed=st.integers(0, 9),
)
def test_arrays_sequences_and_pairs_are_the_same_data(
    shape: tuple[int, ...], dtype: str, train: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 255, (train, *shape)).astype(dtype), np.arange(train) % 3
    test = x[:2], y[:2]
    whole = made(((x, y), test))
    item_by_item = made(((Items(list(x)), Items(list(y))), (list(test[0]), list(test[1]))))
    pairs = made((Items(list(zip(x, y, strict=True))), [*list(zip(*test, strict=True)), (x[0], y[0])]))
    for other in (item_by_item, pairs):
        assert (other.input_shape, other.outputs, other.targets) == (whole.input_shape, 3, "classes")
        np.testing.assert_array_equal(inputs_of(other, other.train), inputs_of(whole, whole.train))
        np.testing.assert_array_equal(targets_of(other.train), y)
        np.testing.assert_allclose(other.mean, whole.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(other.scale, whole.scale, rtol=1e-5, atol=1e-6)
    assert (len(item_by_item.test), len(pairs.test)) == (2, 3)


def test_items_are_read_when_they_are_needed() -> None:
    items = Items(list(np.arange(10_000, dtype=np.float32)))
    dataset = made(((items, np.arange(10_000) % 2), None))
    assert len(items.read) < 2_100
    items.read.clear()
    Batches(dataset, batch=4, workers=3, rank=2, seed=1).batch(7)
    assert len(items.read) == 4


def test_targets_of_a_map_style_set_are_taken_from_its_list() -> None:
    items = Items([(np.ones(2) * row, row % 3) for row in range(600)])
    items.targets = [row % 3 for row in range(600)]  # type: ignore[attr-defined]
    items.classes = ["a", "b", "c"]  # type: ignore[attr-defined]
    dataset = made((items, items))
    assert dataset.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(targets_of(dataset.test), np.arange(600) % 3)


def test_a_list_of_targets_that_the_items_deny_is_not_believed() -> None:
    items = Items([(np.ones(2), row % 2) for row in range(6)])
    items.targets = [1 - row % 2 for row in range(6)]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(targets_of(made((items, items)).train), np.arange(6) % 2)


def test_values_and_names() -> None:
    x = np.ones((6, 4), np.float32)
    values = made(((x, np.linspace(0, 1, 6)), (x, np.zeros(6))))
    assert (values.targets, values.outputs, values.class_names) == ("values", 1, ())
    np.testing.assert_array_equal(values.scale, np.ones(4))
    named = made(((x, [0, 0, 2, 2, 0, 0]), None, ["no", "maybe", "yes"]))
    assert (named.outputs, named.class_names) == (3, ("no", "maybe", "yes"))


def test_batches_for_testing_are_all_samples_in_order() -> None:
    x = np.arange(10, dtype=np.float32)
    dataset = made(((x, np.arange(10) % 2), (x * 2, np.arange(10) % 2)))
    seen = [(inputs.copy(), targets) for inputs, targets in evaluation_batches(dataset, 4)]
    assert [len(inputs) for inputs, _ in seen] == [4, 4, 2]
    expected = (2 * x[:, None] - dataset.mean) / dataset.scale
    np.testing.assert_allclose(np.concatenate([inputs for inputs, _ in seen]), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.concatenate([targets for _, targets in seen]), np.arange(10) % 2)


def broken(row: int, item: Any) -> Items:
    """Nine good items and one that is not."""
    items: list[Any] = [np.ones((2, 3), np.float32) for _ in range(10)]
    items[row] = item
    return Items(items)


LABELS = [0, 1] * 5


@pytest.mark.parametrize(
    ("returned", "fragment"),
    [
        (None, "data mine.py:load: seen None; expected (train, test)"),
        ([1], "seen a list of 1; expected (train, test)"),
        ((None, None), "training set: seen None"),
        ((np.ones((4, 2)), None), "training set: seen ndarray; expected"),
        (({"x": 1}, None), "training set: seen dict"),
        ((Items([]), None), "training set: it is empty"),
        (((Items([]), []), None), "training set: it is empty"),
        (((5, LABELS), None), "inputs are int; expected an array or a sequence"),
        (((np.ones((4, 2)), 5), None), "targets are int; expected an array"),
        (((broken(4, np.ones(3)), LABELS), None), "sample 4 has shape (3,), expected (2, 3, 1)"),
        (((broken(0, np.ones((2, 2, 2, 2))), LABELS), None), "sample 0 has shape (2, 2, 2, 2); expected"),
        (((broken(6, "text"), LABELS), None), "sample 6: inputs of <U4; expected numbers"),
        (((broken(3, np.full((2, 3), np.nan)), LABELS), None), "the input of sample 3 is not finite"),
        (((broken(3, np.ones((2, 3))), LABELS[:9]), None), "10 inputs, but 9 targets"),
        ((Items([(1.0, 0), (1.0, 1), 7]), None), "sample 2: data"),
        ((Items([(1.0, 0), (1.0, 1), 7]), None), "expected a pair (input, target), seen int"),
        ((Items([(1.0, 0), (1.0, [0, 1])]), None), "the target of sample 1 has shape (2,), that of sample 0 ()"),
        (((np.ones((4, 2)), [0, 1, 0, 1]), None, "names"), "class names are str; expected a list"),
        (((np.ones((1, 2)), [1.5]), None), "1 sample, of which none can be set apart"),
    ],
)
def test_what_is_no_data_is_named(returned: Any, fragment: str) -> None:
    assert fragment in failure(returned)


def test_a_function_of_a_file_with_a_module_beside_it(tmp_path: Path) -> None:
    (tmp_path / "shapes_of_mine.py").write_text("SIDE = 3\n")
    text = (
        "import numpy as np\nfrom shapes_of_mine import SIDE\n"
        "def load(path=None):\n"
        "    x = np.zeros((4, SIDE, SIDE), np.uint8)\n"
        "    x[:] = 7 if path is None else len(path.read_text())\n"
        "    return (x, [0, 1, 0, 1]), (x, [0, 1, 0, 1])\n"
    )
    data = written(tmp_path, text)
    check_sources(data.name, None)
    dataset = load_dataset(data)
    assert dataset.input_shape == (3, 3, 1)
    assert dataset.mean.tolist() == [7]
    (tmp_path / "content").write_text("12345")
    assert load_dataset(written(tmp_path, text, path=tmp_path / "content")).mean.tolist() == [5]


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("def load():\n    return 1 / 0\n", "mine.py line 2: ZeroDivisionError"),
        ("def load(path):\n    pass\n", "takes a path; give it with --data-path"),
        ("def other():\n    pass\n", "has no function 'load' (it has: other)"),
        ("import nothing_of_this_name\n", "mine.py line 1: ModuleNotFoundError"),
        ("load(\n", "mine.py line 1: SyntaxError"),
        (
            "class Set:\n    def __len__(self):\n        return 3\n    def __getitem__(self, row):\n"
            "        return [[1.0], 2.0][row], 0.5\n"
            "def load():\n    return Set(), None\n",
            "sample 2: data",
        ),
        (
            "class Set:\n    def __len__(self):\n        return 3\n    def __getitem__(self, row):\n"
            "        return [1.0, 2.0][row], 0.5\n"
            "def load():\n    return Set(), None\n",
            "mine.py line 5: IndexError: list index out of range",
        ),
    ],
)
def test_mistakes_of_the_users_have_file_and_line(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(written(tmp_path, text))
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_before_it_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data file .*none.py does not exist"):
        check_sources(f"{tmp_path}/none.py:load", None)


@pytest.mark.parametrize("name", ["mine.py", "mine.py:", "mine:load", "pictures", "x.npy", "a/b:c", "x\n/y"])
def test_what_names_no_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="unknown data set") as caught:
        DataSettings(name=name)
    assert ("then write ./pictures" in str(caught.value)) == (name == "pictures")
