"""Needs of each model of the zoo where a job does not say them; told without the engine and without arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from taihu.core.base.errors import ModelError
from taihu.core.model.names import DEFAULT_MODEL, TEXT_DATA, check_model_name, own_data

_OTHERWISE: Final = 0.05


@dataclass(frozen=True)
class ModelDefaults:
    """The defaults of one model.

    Attributes:
        learning_rate: with SGD and a momentum of 0.9, from which its loss falls on every built-in data set.
        smallest_side: height and width, in pixels, of the smallest image that it can take; 0 for one that takes rows
            of features as well, or text alone.
        usual_side: of the colour images that benchmarks give it.
        usual_outputs: classes that they are of.
        takes_text: whether it takes text, and nothing else.
    """

    learning_rate: float
    smallest_side: int
    usual_side: int = 32
    usual_outputs: int = 10
    takes_text: bool = False


MODEL_DEFAULTS: Mapping[str, ModelDefaults] = MappingProxyType(
    {
        "small_cnn": ModelDefaults(0.05, 2),
        "cifar10_quick": ModelDefaults(0.01, 12),
        "resnet20": ModelDefaults(0.05, 1),
        "vgg16_cifar": ModelDefaults(0.01, 32),
        "alexnet": ModelDefaults(0.002, 55, 227, 1000),
        "alexnet_lrn": ModelDefaults(0.002, 55, 227, 1000),
        "vgg16": ModelDefaults(0.002, 32, 224, 1000),
        "googlenet": ModelDefaults(0.002, 79, 224, 1000),
        "resnet50": ModelDefaults(0.002, 1, 224, 1000),
        "mlp": ModelDefaults(0.05, 0),
        "small_gpt": ModelDefaults(0.05, 0, takes_text=True),
    }
)


def default_model(data: str) -> str:
    """The model of a job that sets none, by the name of its data alone: they need not lie on every host."""
    own = own_data(data)
    kind = "" if own is None else own.kind
    if kind == "text" or data == TEXT_DATA:
        return "small_gpt"
    return "mlp" if kind == "table" else DEFAULT_MODEL


def takes_features(model: str) -> bool:
    """Whether a model may take rows of features: all but those of the zoo that take images, or text, alone."""
    known = MODEL_DEFAULTS.get(model)
    return known is None or (known.smallest_side == 0 and not known.takes_text)


def default_learning_rate(model: str) -> float:
    """The learning rate of a job that sets none, where the optimizer has none; `model` may be the user's own."""
    known = MODEL_DEFAULTS.get(model)
    return _OTHERWISE if known is None else known.learning_rate


def usual_input(model: str) -> tuple[tuple[int, ...], int]:
    """Shape of a sample and number of classes of what benchmarks give a model.

    (height, width, channels) of images, CIFAR-10's unless the model is made for others; (time,) of bytes of text.
    """
    known = MODEL_DEFAULTS.get(model, ModelDefaults(_OTHERWISE, 0))
    if known.takes_text:
        return (128,), 256
    return (known.usual_side, known.usual_side, 3), known.usual_outputs


def smallest_size(model: str, input_shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width that images of `input_shape` must be brought to for `model`; None where they fit."""
    known = MODEL_DEFAULTS.get(model)
    if known is None or len(input_shape) != 3 or min(input_shape[:2]) >= known.smallest_side:
        return None
    height, width = (max(side, known.smallest_side) for side in input_shape[:2])
    return height, width


def check_model_fits(model: str, input_shape: tuple[int, ...]) -> None:
    """Accept a model of the zoo for inputs of a shape.

    Raises:
        ModelError: there is no such model, it takes images alone and these are none, or they are too small.
    """
    check_model_name(model)
    known = MODEL_DEFAULTS[model]
    side = known.smallest_side
    if known.takes_text and len(input_shape) != 1:
        raise ModelError(f"model {model}: expected text, the data set has images; use model small_cnn")
    if not side:
        return
    if len(input_shape) == 1:
        raise ModelError(
            f"model {model}: expected images of (height, width, channels), the data set has rows of {input_shape[0]} "
            "features; use model mlp, or one of your own"
        )
    # What has another shape is no data set's; `Model` refuses it.
    if len(input_shape) == 3 and min(input_shape[:2]) < side:
        raise ModelError(
            f"model {model}: expected images of at least {side} x {side} pixels, seen {input_shape[0]} x "
            f"{input_shape[1]}; set data.resize = '{side}x{side}', or use another model"
        )
