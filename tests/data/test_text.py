"""Text: its bytes in sequences, the parts for training and testing, and what is wrong with files."""

from __future__ import annotations

import gzip
import hashlib
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError, DataError, ModelError
from taihu.core.job import load_job
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset, Examples, evaluation_batches
from taihu.worker.data.base.text import TextExamples, sequences, sequences_of
from taihu.worker.data.batches import Batches
from taihu.worker.data.counting import count_training_samples
from taihu.worker.data.load import load_dataset
from taihu.worker.preflight import check_inputs


def loaded(name: Path | str, **more: Any) -> Dataset:
    chosen = DataSettings(name=str(name), **more)
    dataset = load_dataset(chosen)
    assert count_training_samples(chosen) in {None, len(dataset.train)}
    return dataset


def read(examples: Examples, length: int) -> list[tuple[bytes, bytes]]:
    """Every sequence, and what follows each of its bytes."""
    rows = np.arange(len(examples))
    inputs = np.empty((len(rows), length), np.float32)
    examples.read(rows, inputs)
    targets = examples.targets(rows)
    assert targets.dtype == np.int64
    return [(bytes(map(int, each)), bytes(other.tolist())) for each, other in zip(inputs, targets, strict=True)]


def cut(text: bytes, length: int) -> list[tuple[bytes, bytes]]:
    """The sequences of one text, by slices."""
    starts = range(0, len(text), length)
    pairs = [(text[start : start + length], text[start + 1 : start + length + 1]) for start in starts]
    return [pair for pair in pairs if len(pair[1]) == length]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=30), max_size=4), st.integers(1, 9))
def test_texts_are_cut_into_sequences_each_for_itself(texts: list[bytes], length: int) -> None:
    whole = np.frombuffer(b"".join(texts), np.uint8)
    expected = [pair for text in texts for pair in cut(text, length)]
    assert sum(sequences_of(len(text), length) for text in texts) == len(expected)
    if not expected:
        with pytest.raises(DataError, match=f"a text: {whole.size} bytes, a sequence takes {length + 1}; give more"):
            sequences(whole, [len(text) for text in texts], length, "a text")
        return
    examples = sequences(whole, [len(text) for text in texts], length, "a text")
    assert read(examples, length) == expected
    some = np.arange(0, len(expected), 2)
    assert read(examples.some(some), length) == expected[::2]


def test_the_sources_of_python() -> None:
    dataset = loaded("python-source", sequence=64)
    again = loaded("python-source", sequence=64)
    assert (dataset.input_shape, dataset.outputs, dataset.targets) == ((64,), 256, "tokens")
    assert len(dataset.test) == 512
    assert len(dataset.train) > 20_000
    for one, other in ((dataset.train, again.train), (dataset.test, again.test)):
        assert isinstance(one, TextExamples)
        assert isinstance(other, TextExamples)
        assert np.array_equal(one.text, other.text)
        assert np.array_equal(one.starts, other.starts)
    folder = Path(sysconfig.get_path("stdlib"))
    for name in ("ast.py", "socket.py", "difflib.py", "enum.py", "inspect.py", "zipfile.py"):
        kept_apart = hashlib.sha256(name.encode()).digest()[0] % 16 == 0
        sequence = cut((folder / name).read_bytes(), 64)[3]
        assert isinstance(dataset.train, TextExamples)
        assert (sequence[0] in dataset.train.text.tobytes()) is not kept_apart


def test_a_batch_is_what_the_model_takes() -> None:
    dataset = loaded("python-source", sequence=16)
    inputs, targets = Batches(dataset, batch=3, workers=2, rank=1, seed=5).batch(2)
    assert inputs.shape == targets.shape == (3, 16)
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    tested = list(evaluation_batches(dataset, 500))
    assert [len(each) for _, each in tested] == [500, 12]


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_ones_own(tmp_path: Path, packed: bool) -> None:
    text = np.random.default_rng(1).bytes(103)
    file = tmp_path / ("a.txt.gz" if packed else "a.txt")
    file.write_bytes(gzip.compress(text) if packed else text)
    dataset = loaded(file, sequence=4, test_share=0.2)
    parts = [read(part, 4) for part in (dataset.train, dataset.test)]
    assert [len(part) for part in parts] == [20, 5]
    assert sorted(parts[0] + parts[1]) == sorted(cut(text, 4))
    assert read(loaded(file, sequence=4, test_share=0.2, split_seed=1).test, 4) != parts[1]


def test_a_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"0123456789")
    (tmp_path / "a.txt").write_bytes(b"abcdefgh")
    (tmp_path / ".c.txt").write_bytes(b"hidden")
    (tmp_path / "empty.txt").write_bytes(b"")
    dataset = loaded(f"{tmp_path}/", sequence=3, test_share=0.01)
    seen = sorted(read(dataset.train, 3) + read(dataset.test, 3))
    assert seen == sorted([(b"abc", b"bcd"), (b"def", b"efg"), (b"012", b"123"), (b"345", b"456"), (b"678", b"789")])
    (tmp_path / "train.txt").write_bytes(b"train")
    (tmp_path / "val.txt").write_bytes(b"valid")
    dataset = loaded(f"{tmp_path}/", sequence=3)
    assert read(dataset.train, 3) == [(b"tra", b"rai")]
    assert read(dataset.test, 3) == [(b"val", b"ali")]


def test_files_beside_texts_are_counted(tmp_path: Path) -> None:
    for name in ("b.TXT", "a.txt", "c.md", ".d.txt"):
        (tmp_path / name).write_bytes(b"0123456789" * 30)
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"9876543210" * 30))
    (tmp_path / "__MACOSX").mkdir()
    dataset = loaded(tmp_path, sequence=10)
    assert len(dataset.train) + len(dataset.test) == 3 * 29
    assert dataset.told == (f"{tmp_path}: 3 files left out: 2 hidden, 1 .md",)
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_bytes(b"0123456789" * 30)
    assert "3 texts beside both parts" in loaded(tmp_path, sequence=10).told[0]


def test_notes_beside_folders_of_images_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("about the pictures")
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="no images"):
        loaded(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"a.txt: not found; give the path of a text file, or a folder of .txt files"),
        (b"", r"data .*a.txt: 0 bytes, a sequence takes 9; give more text, or a smaller data.sequence"),
        (b"12345678", r"data .*a.txt: 8 bytes, a sequence takes 9"),
        (b"123456789", r"data .*a.txt: 1 sample, of which none can be set apart for testing"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        loaded(tmp_path / "a.txt", sequence=8)


def test_a_damaged_archive_and_a_short_test(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"a.txt.gz: corrupt gzip"):
        loaded(tmp_path / "a.txt.gz")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.txt").write_bytes(b"x" * 100)
    (tmp_path / "own" / "test.txt").write_bytes(b"x")
    with pytest.raises(DataError, match=r"data .*test.txt: 1 bytes, a sequence takes 9"):
        loaded(f"{tmp_path}/own", sequence=8)


def test_what_does_not_fit_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    for name, model in ((f"{tmp_path}/a.txt", "mlp"), (f"{tmp_path}/", None)):
        given = {"data": {"name": name}, "model": {"name": model} if model else {}}
        with pytest.raises(ModelError, match=r"expected images or rows, .* is text; use model small_gpt"):
            check_inputs(load_job(None, given))
    few = {"data": {"name": f"{tmp_path}/a.txt", "sequence": 8}}
    with pytest.raises(DataError, match="the training set has 10; the largest batch that fits is"):
        check_inputs(load_job(None, few))
    with pytest.raises(ConfigError, match=r"data.sequence"):
        load_job(None, {"data": {"sequence": 0}})
    with pytest.raises(DataError, match=r"python-source: data.resize is for images"):
        loaded("python-source", resize="8x8")
