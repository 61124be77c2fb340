"""Text of the user's own: a file, or a folder of .txt files."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.model.names import OwnData
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.files import check_readable, read_file
from taihu.worker.data.base.folder_files import Wanted, find_files, words_on
from taihu.worker.data.base.text import TextExamples, sequences, sequences_of, text_dataset
from taihu.worker.data.own.assemble import split_rows

_REMEDY: Final = "give the path of a text file, or a folder of .txt files"
_TEXTS: Final = Wanted(frozenset({".txt"}), packings=(".gz",))
_TRAIN: Final = "train.txt"
_TEST: Final = ("test.txt", "val.txt", "valid.txt", "validation.txt")


def load_own_text(settings: DataSettings, own: OwnData) -> Dataset:
    """The sequences of a file, or of all .txt files of a folder in the order of their names.

    In a folder `test.txt` beside `train.txt` is for testing. Otherwise a share of the sequences is set apart. One
    file is mapped, several are read into memory. Notes of the data set tell files that are left out.

    Raises:
        DataError: a file is missing or cannot be read, or there are too few sequences.
    """
    left_out: Counter[str] = Counter()
    train, test = _files(own, left_out)
    where = f"data {settings.name}"
    examples = _examples(train, settings.sequence, where)
    if test:
        dataset = text_dataset(settings.name, examples, _examples(test, settings.sequence, f"data {test[0]}"))
    else:
        rows, kept_apart = split_rows(len(examples), settings, where)
        dataset = text_dataset(settings.name, examples.some(rows), examples.some(kept_apart))
    return replace(dataset, notes=(f"{own.path}: {words_on(left_out)}",) if left_out else ())


def count_own_text(own: OwnData, length: int) -> tuple[int, bool] | None:
    """Number of sequences for training, and whether there are others for testing; None where a file is packed."""
    train, test = _files(own, Counter())
    if any(file.suffix == ".gz" for file in train):
        return None
    try:
        return sum(sequences_of(file.stat().st_size, length) for file in train), bool(test)
    except OSError:
        return None


def _files(own: OwnData, left_out: Counter[str]) -> tuple[list[Path], list[Path]]:
    """The files for training, and those for testing, if there are any; others are counted."""
    if own.kind != "folder":
        return [own.path], []
    files = [Path(file) for file in find_files(own.path, _TEXTS, left_out, _REMEDY, below=False)]
    if not files:
        raise DataError(f"data folder {own.path}: no .txt files; {_REMEDY}")
    by_name = {file.name: file for file in files}
    test = next((by_name[name] for name in _TEST if name in by_name), None)
    if _TRAIN in by_name and test is not None:
        if len(files) > 2:
            left_out["texts beside both parts"] += len(files) - 2
        return [by_name[_TRAIN]], [test]
    return files, []


def _examples(files: list[Path], length: int, where: str) -> TextExamples:
    texts = [_read(file) for file in files]
    text = texts[0] if len(texts) == 1 else np.concatenate(texts)
    return sequences(text, [each.size for each in texts], length, where)


def _read(file: Path) -> NDArray[np.uint8]:
    if file.suffix == ".gz":
        return np.frombuffer(read_file(file, _REMEDY), np.uint8)
    check_readable(file, _REMEDY)
    if not file.stat().st_size:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r")
