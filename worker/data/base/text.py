"""Text as tokens: its bytes, in sequences of one length, each with the bytes that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.model.names import TOKENS
from taihu.worker.data.base.dataset import Dataset, Rows, Targets
from taihu.worker.data.base.statistics import no_statistics


@dataclass(frozen=True, eq=False)
class TextExamples:
    """Sequences of `length` bytes of `text` (bytes,), uint8, in memory or mapped, that begin at `starts` (n,), int64.

    Behind each of them there is one more byte.
    """

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Write the bytes as numbers."""
        out[...] = self.text[self.starts[rows][:, None] + np.arange(self.length)]

    def targets(self, rows: Rows) -> Targets:
        """The bytes that follow each, int64 (n, length)."""
        places = self.starts[rows][:, None] + np.arange(1, self.length + 1)
        found: Targets = self.text[places].astype(np.int64)
        return found

    def some(self, rows: Rows) -> TextExamples:
        """Those of `rows` alone."""
        return TextExamples(self.text, self.starts[rows], self.length)


def sequences_of(size: int, length: int) -> int:
    """The number of sequences in a text of so many bytes; what is left at its end is left out."""
    return max(0, size - 1) // length


def sequences(text: NDArray[np.uint8], sizes: Sequence[int], length: int, where: str) -> TextExamples:
    """The sequences of texts that lie one after another in `text`; none reaches from one into the next.

    Args:
        text: (bytes,).
        sizes: of each text, in bytes.
        length: of a sequence.
        where: names the texts.

    Raises:
        DataError: there is no sequence.
    """
    offsets = np.cumsum([0, *sizes])
    starts = [
        offset + length * np.arange(sequences_of(size, length)) for offset, size in zip(offsets, sizes, strict=False)
    ]
    found = np.concatenate(starts) if starts else np.empty(0, np.int64)
    if not len(found):
        raise DataError(
            f"{where}: {text.size} bytes, a sequence takes {length + 1}; give more text, or a smaller data.sequence"
        )
    return TextExamples(text, found.astype(np.int64), length)


def text_dataset(name: str, train: TextExamples, test: TextExamples) -> Dataset:
    """The data set of two parts; tokens stay as they are."""
    shape = (train.length,)
    mean, scale, _ = no_statistics(shape)
    return Dataset(name, train, test, shape, TOKENS, "tokens", mean, scale)
