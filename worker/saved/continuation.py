"""Text that a saved model goes on with, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.worker.saved.prediction import LoadedModel


@dataclass(frozen=True, eq=False)
class Draw:
    """The choice of a byte: at `temperature` 0 the likeliest one, above it one drawn with `generator`.

    Chances are those of the model at 1; below 1 likely bytes become likelier.
    """

    temperature: float
    generator: np.random.Generator

    def choose(self, chances: NDArray[np.float32]) -> int:
        """A byte by the `chances` of each, shape (bytes,)."""
        if not self.temperature:
            return int(chances.argmax())
        # Of logarithms, so that a low temperature does not make all chances 0.
        with np.errstate(divide="ignore"):
            scores = np.log(chances.astype(np.float64)) / self.temperature
        weights = np.exp(scores - scores.max())
        return int(self.generator.choice(len(weights), p=weights / weights.sum()))


def next_chances(model: LoadedModel, text: bytes) -> NDArray[np.float32]:
    """The chance of every byte to follow `text`, shape (bytes,); a model sees as many bytes as it was trained on.

    Raises:
        DataError: there is no text.
    """
    if not text:
        raise DataError("no text to go on from: expected at least one byte")
    (length,) = model.input_shape
    seen = np.frombuffer(text[-length:], np.uint8)
    # Places behind the text do not count: a model of text looks back alone.
    tokens = np.zeros((1, length), np.float32)
    tokens[0, : len(seen)] = seen
    chances: NDArray[np.float32] = model.predict(tokens)[0, len(seen) - 1]
    return chances


def continued(model: LoadedModel, text: bytes, draw: Draw) -> Iterator[int]:
    """Bytes that follow `text`, without end, each by those before it."""
    (length,) = model.input_shape
    while True:
        chosen = draw.choose(next_chances(model, text))
        yield chosen
        text = text[-length:] + bytes([chosen])
