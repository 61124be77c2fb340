"""Models by their name in a job file: of the zoo, or of a function in the user's own file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from taihu.core.base.errors import ModelError
from taihu.core.model.model_defaults import check_model_fits
from taihu.core.model.names import MODEL_NAMES, check_model_name, layers_file, net_file, own_model
from taihu.core.process.programs.user_code import load_function
from taihu.worker.engine.base.layer import Layer, Shape
from taihu.worker.engine.models.definition import build_from_definition
from taihu.worker.engine.models.model import Model
from taihu.worker.engine.models.zoo import MODELS


def build_model(name: str, input_shape: Shape, outputs: int) -> Model:
    """Build a model for inputs of a shape and a number of outputs.

    Args:
        name: a name in MODELS, or "path/to/file.py:function" where function(input_shape, outputs) returns a Layer, or
            "path/to/layers.json", a file of what `Layer.definition` returned, or "path/to/net.prototxt", a network of
            Caffe's.
        input_shape: of one sample: (height, width, channels) of an image, or (features,).
        outputs: one for each class, or the values that are predicted.

    Raises:
        ModelError: unknown name, missing file or function, an exception inside of it, or layers that do not fit.
    """
    return Model(build_layers(name, input_shape, outputs), input_shape, outputs)


def build_layers(name: str, input_shape: Shape, outputs: int) -> Layer:
    """The outermost layer of what `build_model` builds, not built itself yet."""
    if name in MODEL_NAMES:
        check_model_fits(name, input_shape)
    root = _builder(name)(input_shape, outputs)
    if not isinstance(root, Layer):
        raise ModelError(f"model {name}: expected a Layer, seen {type(root).__name__}; return Sequential([...])")
    return root


def _builder(name: str) -> Callable[[Shape, int], object]:
    file = layers_file(name)
    if file is not None:
        return lambda input_shape, classes: _defined_layers(file)
    net = net_file(name)
    if net is not None:
        # Parsing takes a library that most models do without.
        from taihu.worker.engine.models.caffe import layers_of_net  # noqa: PLC0415

        return lambda input_shape, outputs: layers_of_net(net, outputs)
    if own_model(name) is not None:
        return load_function(
            name, thing="model", error=ModelError, signature="function(input_shape, outputs) -> Layer"
        )
    check_model_name(name)
    return MODELS[name]


def _defined_layers(file: Path) -> Layer:
    try:
        definition = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"model file {file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelError(f"model file {file}: expected layer definitions as JSON, seen something else") from None
    return build_from_definition(definition)
