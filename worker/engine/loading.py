"""From a name in a job file to a model: the zoo, or a function in the user's own file."""

from __future__ import annotations

from collections.abc import Callable

from taihu.errors import ModelError
from taihu.names import check_model_name, own_model
from taihu.user_code import load_function
from worker.engine.layer import Layer, Shape
from worker.engine.model import Model
from worker.engine.zoo import MODELS

__all__ = ["build_model"]


def build_model(name: str, input_shape: Shape, classes: int) -> Model:
    """Build a model for images of (height, width, channels) and a number of classes.

    Args:
        name: a name in MODELS, or "path/to/file.py:function" where function(input_shape, classes) returns a Layer.
        input_shape: (height, width, channels) of an image.
        classes: number of logits.

    Raises:
        ModelError: unknown name, missing file or function, an exception inside of it, or layers that do not fit.
    """
    root = _builder(name)(input_shape, classes)
    if not isinstance(root, Layer):
        raise ModelError(f"model {name}: expected a Layer, seen {type(root).__name__}; return Sequential([...])")
    return Model(root, input_shape, classes)


def _builder(name: str) -> Callable[[Shape, int], object]:
    if own_model(name) is not None:
        return load_function(
            name, thing="model", error=ModelError, signature="function(input_shape, classes) -> Layer"
        )
    check_model_name(name)
    return MODELS[name]
