"""The source text of Python's standard library: every machine that runs taihu has it."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import Final

import numpy as np

from taihu.core.base.errors import DataError
from taihu.core.model.names import TEXT_DATA
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.files import read_file
from taihu.worker.data.base.statistics import spread_rows
from taihu.worker.data.base.text import TextExamples, sequences, sequences_of, text_dataset

_REMEDY: Final = "give text of your own with --data FILE.txt"
_TEST_PARTS: Final = 16
# A test takes seconds then.
_MOST_TESTED: Final = 512


def load_python_source(length: int) -> Dataset:
    """Sequences of `length` bytes of the library's modules, in the order of their names.

    About every sixteenth module is for testing, told by a hash of its name: a new version of Python moves none. Of
    these at most 512 sequences are tested, spread evenly.

    Raises:
        DataError: the sources are not there, or too short for one sequence.
    """
    train, test = (_sequences(files, length) for files in python_files())
    return text_dataset(TEXT_DATA, train, test.some(spread_rows(len(test), _MOST_TESTED)))


def count_python_source(length: int) -> int:
    """The number of sequences for training."""
    train, _ = python_files()
    return sum(sequences_of(file.stat().st_size, length) for file in train)


def python_files() -> tuple[list[Path], list[Path]]:
    """The library's modules that are one file each, for training and for testing.

    Packages are left out: which of them are there differs between systems; so do links, and what is made for one.

    Raises:
        DataError: there are none.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = [file for file in sorted(folder.glob("*.py")) if not (file.is_symlink() or "_sysconfig" in file.name)]
    test = [file for file in files if hashlib.sha256(file.name.encode()).digest()[0] % _TEST_PARTS == 0]
    if not test:
        raise DataError(f"{TEXT_DATA}: the sources of Python's standard library are not in {folder}; {_REMEDY}")
    return [file for file in files if file not in test], test


def _sequences(files: list[Path], length: int) -> TextExamples:
    texts = [read_file(file, _REMEDY) for file in files]
    return sequences(np.frombuffer(b"".join(texts), np.uint8), list(map(len, texts)), length, TEXT_DATA)
