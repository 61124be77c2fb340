"""From a name in a job file to a model: the zoo, or a function in the user's own file."""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from taihu.errors import ModelError
from taihu.names import check_model_name, own_model
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
    own = own_model(name)
    builder = _zoo_builder(name) if own is None else _user_builder(*own)
    try:
        root = builder(input_shape, classes)
    except ModelError:
        raise
    except Exception as error:  # whatever the user's function raises
        raise ModelError(f"model {name}: {_in_one_line(error)}; fix the function") from error
    if not isinstance(root, Layer):
        raise ModelError(f"model {name}: expected a Layer, seen {type(root).__name__}; return Sequential([...])")
    return Model(root, input_shape, classes)


def _zoo_builder(name: str) -> Callable[[Shape, int], object]:
    check_model_name(name)
    return MODELS[name]


def _user_builder(path: Path, function: str) -> Callable[[Shape, int], object]:
    module = _load(path)
    builder = getattr(module, function, None)
    if not callable(builder):
        known = ", ".join(key for key, value in vars(module).items() if _is_own_function(value, module)) or "none"
        raise ModelError(
            f"model file {path} has no function {function!r} (it has: {known}); give {path}:function with "
            "function(input_shape, classes) -> Layer"
        )
    return builder  # type: ignore[no-any-return]


def _load(path: Path) -> ModuleType:
    # The name must not meet a package's; dataclasses and pickling look modules up by it.
    module_name = f"_taihu_user_model_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"model file {path} is not a Python file; give path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        del sys.modules[module_name]
        raise ModelError(f"model file {path}: {_in_one_line(error)}; fix the file") from error
    return module


def _is_own_function(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
