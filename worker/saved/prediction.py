"""Answers of a saved model to inputs: the probabilities of classes, or values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taihu.core.base.errors import DataError, ModelError
from taihu.core.checkpoint.places import Place
from taihu.worker.engine import Model, StepContext
from taihu.worker.saved.metadata import SavedModel
from taihu.worker.saved.reading import StoredModel, load_model

_BATCH: Final = 256
_CONTEXT: Final = StepContext(training=False, seed=0, step=0, first_sample=0)


class LoadedModel:
    """A trained model, ready to predict.

    Args:
        stored: the model with its parameters.
        path: of its file, for messages.

    Raises:
        ModelError: the file does not say how inputs are normalised.
    """

    def __init__(self, stored: StoredModel, path: Place) -> None:
        if not stored.saved.mean:
            raise ModelError(
                f"{path}: saved by an older taihu, without the normalisation of its inputs; train and save it again"
            )
        self._stored = stored
        self._statistics = stored.saved.statistics

    @property
    def info(self) -> SavedModel:
        """The file's facts about the model: classes, shapes, normalisation, job."""
        return self._stored.saved

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample: (height, width, channels) or (features,)."""
        return self.info.input_shape

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in the order of the classes; their numbers where the data had no names, empty for values."""
        return self.info.class_names or tuple(map(str, range(self.info.classes)))

    @property
    def network(self) -> Model:
        """The layers with their parameters."""
        return self._stored.model

    def predict(self, x: ArrayLike, batch: int = _BATCH) -> NDArray[np.float32]:
        """Compute the model's answer for every sample.

        Args:
            x: (n, *input_shape), numbers as in the data that it was trained on, not normalised.
            batch: samples computed at once, at most; fewer where activations would fill half of the memory.

        Returns:
            (n, classes) probabilities, (n, time, tokens) of text, or (n, outputs) values, float32.

        Raises:
            DataError: `x` has another shape, or is not made of numbers.
        """
        inputs = self._checked(x)
        if batch < 1:
            raise DataError(f"batch: expected at least 1, seen {batch}")
        batch = self._stored.batch(batch)
        width = self.info.classes or self.info.outputs
        answers = np.empty((len(inputs), *self.network.output_shape[:-1], width), dtype=np.float32)
        for start in range(0, len(inputs), batch):
            part = self._normalised(inputs[start : start + batch])
            answers[start : start + batch] = self._answer(self.network.forward(part, _CONTEXT))
        return answers

    def predict_classes(self, x: ArrayLike, batch: int = _BATCH) -> NDArray[np.int64]:
        """The number of the likeliest class of every sample, (n,), of text of every place, (n, time).

        The first of equal ones is told.

        Raises:
            ModelError: the model predicts values.
            DataError: see `predict`.
        """
        if not self.info.classes:
            raise ModelError("predict_classes: this model predicts values and knows no classes; call predict()")
        classes: NDArray[np.int64] = self.predict(x, batch).argmax(axis=-1)
        return classes

    def _checked(self, x: ArrayLike) -> NDArray[Any]:
        try:
            inputs = np.asarray(x)
        except ValueError:
            raise DataError(f"expected an array of shape (n, {self._shape()}), seen rows of several shapes") from None
        if inputs.shape[1:] != self.input_shape or inputs.ndim == 0:
            one = inputs.shape == self.input_shape
            remedy = "add an axis for the samples: x[None]" if one else "give it what the model was trained on"
            raise DataError(f"expected an array of shape (n, {self._shape()}), seen {inputs.shape}; {remedy}")
        if inputs.dtype.kind not in "buif":
            raise DataError(f"expected an array of real numbers, seen {inputs.dtype}")
        return inputs

    def _normalised(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """Raw inputs as training had them, bit by bit."""
        mean, scale, offset = self._statistics
        part = raw.astype(np.float32) if offset is None else (raw.astype(np.float64) - offset).astype(np.float32)
        np.subtract(part, mean, out=part)
        np.divide(part, scale, out=part)
        return part

    def _shape(self) -> str:
        return ", ".join(map(str, self.input_shape))

    def _answer(self, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.info.loss == "cross-entropy" and self.info.classes:
            odds: NDArray[np.float32] = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
            odds /= odds.sum(axis=-1, keepdims=True)
            return odds
        if self.info.loss == "bce":
            chances = _sigmoid(outputs)
            return np.hstack((1 - chances, chances)) if self.info.classes else chances
        return outputs


def load_model_file(path: Place, own: str | None = None) -> LoadedModel:
    """Load a saved model, see `load_model`.

    Raises:
        ModelError: the file cannot be read, its model cannot be built, or it does not say how inputs are normalised.
    """
    return LoadedModel(load_model(path, own), path)


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    small = np.exp(-np.abs(x))
    chances: NDArray[np.float32] = np.where(x >= 0, 1, small) / (1 + small)
    return chances
