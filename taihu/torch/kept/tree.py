"""Trees, as `state_dict()` returns them, as words and arrays: nothing of them is pickled. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError, ConfigError

_PLAIN: Final = (int, float, str, bool, type(None))
_AS_THEY_ARE: Final = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8)
"""The types that a file of arrays knows by name; others are bytes there."""
_NAMES: Final = {dtype: name for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}
_MAPS: Final[dict[str, Callable[[Any], Any]]] = {"map": dict, "counts": Counter}
_LISTS: Final[dict[str, Callable[[Any], Any]]] = {"list": list, "tuple": tuple, "set": set}


def arrays_and_words(tree: object, name: str) -> tuple[dict[str, NDArray[Any]], str]:
    """The tensors of a tree by their names, views where they lie in memory of this host, and all else as JSON.

    Args:
        tree: mappings, sequences and sets of numbers, texts, None, tensors and arrays.
        name: of the whole, for the names of its tensors, and for errors.

    Raises:
        ConfigError: something else is in it.
    """
    arrays: dict[str, NDArray[Any]] = {}
    words = json.dumps(_told(tree, name, arrays), separators=(",", ":"))
    return arrays, words


def from_arrays_and_words(arrays: Mapping[str, NDArray[Any]], words: str) -> Any:
    """The tree, in memory of its own.

    Raises:
        CheckpointError: words or arrays are damaged.
    """
    try:
        return _made(json.loads(words), arrays)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"damaged state of a script: {type(error).__name__}: {error}") from None


def _told(value: object, name: str, arrays: dict[str, NDArray[Any]]) -> object:
    """A value as JSON holds it; a list of two begins with its kind."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        while name in arrays:  # a key may have a dot
            name += "'"
        arrays[name], dtype = _array_of(value, name)
        return ["tensor", [name, dtype, list(value.shape)]]
    if isinstance(value, (np.ndarray, np.generic)):
        return ["array", _told(torch.from_numpy(np.array(value)), name, arrays)]
    if isinstance(value, Mapping):
        kind = "counts" if isinstance(value, Counter) else "map"
        keys = [key if type(key) in _PLAIN else _told(key, f"{name} (a key)", arrays) for key in value]
        return [kind, list(zip(keys, _all_told(value.items(), name, arrays), strict=True))]
    if isinstance(value, (list, tuple, set)):
        kind = next(kind for kind, made in _LISTS.items() if isinstance(value, made))  # type: ignore[arg-type]
        return [kind, _all_told(enumerate(value), name, arrays)]
    raise ConfigError(
        f"{name} is of {type(value).__name__}: expected numbers, texts, tensors, and mappings and lists of them in "
        "what a state_dict() returns"
    )


def _all_told(values: Iterable[tuple[Any, Any]], name: str, arrays: dict[str, NDArray[Any]]) -> list[object]:
    """Values as JSON holds them; most of a tree are plain."""
    return [each if type(each) in _PLAIN else _told(each, f"{name}.{key}", arrays) for key, each in values]


def _array_of(tensor: torch.Tensor, name: str) -> tuple[NDArray[Any], str]:
    """The values of a tensor as an array, and the name of their type."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise ConfigError(f"{name} is {tensor.layout} on {tensor.device}: expected a dense tensor with values")
    here = tensor.detach()
    if tensor.device.type != "cpu" or not here.is_contiguous() or tensor.is_conj():
        here = here.resolve_conj().cpu().contiguous()
    if here.dtype not in _AS_THEY_ARE:
        here = here.view(-1).view(torch.uint8)
    return here.numpy(), _NAMES[tensor.dtype]


def _made(told: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(told, list):
        return told
    kind, value = told
    if kind == "tensor":
        name, dtype_name, shape = value
        dtype = getattr(torch, dtype_name)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(dtype_name)
        tensor, raw = torch.empty(shape, dtype=dtype), np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
        if tensor.numel():
            tensor.view(-1).view(torch.uint8).copy_(torch.from_numpy(raw.copy()))
        return tensor
    if kind == "array":
        return _made(value, arrays).numpy()
    if kind in _MAPS:
        return _MAPS[kind]({_made(key, arrays): _made(each, arrays) for key, each in value})
    return _LISTS[kind](_made(each, arrays) for each in value)
