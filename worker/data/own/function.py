"""Data that a function of the user's own returns: arrays, sequences, and map-style data sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.model.names import OwnData
from taihu.core.process.programs.user_code import load_function
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.own.assemble import Split, assemble
from taihu.worker.data.own.inputs import Inputs, UserCode, array_inputs, item_inputs

_FORM = (
    "expected (train, test), each a pair (inputs, targets) or an object whose items are such pairs, and perhaps the "
    "names of classes"
)
_IN_MEMORY = ("__array_interface__", "__dlpack__", "to_numpy")


def load_own_function(settings: DataSettings, own: OwnData) -> Dataset:
    """Call the function, with `data.path` where it has a parameter `path`, and make a data set of what it returns.

    Raises:
        DataError: it fails, or returns something else than data; the message has file and line, or the sample.
    """
    spec = f"{own.path}:{own.function}"
    function = load_function(spec, thing="data", error=DataError, signature="function() -> (train, test)")
    return dataset_of(_call(function, settings), settings, own.path)


def dataset_of(returned: Any, settings: DataSettings, file: Path) -> Dataset:
    """The data set of (train, test) or (train, test, class names), which code in `file` made.

    Raises:
        DataError: see `load_own_function`.
    """
    name = settings.name
    if not isinstance(returned, tuple | list) or len(returned) not in {2, 3}:
        raise DataError(f"data {name}: seen {_described(returned)}; {_FORM}")
    code = UserCode(file, f"data {name}: training set")
    train = _part(returned[0], code)
    test = None if returned[1] is None else _part(returned[1], replace(code, where=f"data {name}: test set"))
    names = returned[2] if len(returned) == 3 else _class_names(returned[0])
    return assemble(settings, train, test, _texts(names, name))


def _call(function: Callable[..., Any], settings: DataSettings) -> Any:
    parameters = inspect.signature(function).parameters
    if "path" not in parameters:
        return function()
    if settings.path is not None:
        return function(path=settings.path)
    if parameters["path"].default is inspect.Parameter.empty:
        raise DataError(f"data {settings.name}: its function takes a path; give it with --data-path")
    return function()


def _part(given: Any, code: UserCode) -> Split:
    if isinstance(given, tuple | list) and len(given) == 2:
        return Split(_inputs(given[0], code), _targets(given[1], code), code.where, f"{code.where}: targets")
    if _in_memory(given) or not _is_sequence(given):
        raise DataError(f"{code.where}: seen {_described(given)}; {_FORM}")
    return _pairs(given, code)


def _inputs(given: Any, code: UserCode) -> Inputs:
    if _in_memory(given):
        # An array that is mapped from a file stays so.
        return array_inputs(
            given if isinstance(given, np.ndarray) else code.call(lambda: np.asarray(given)), code.where
        )
    if not _is_sequence(given):
        raise DataError(f"{code.where}: inputs are {_described(given)}; expected an array or a sequence")
    return item_inputs(given.__getitem__, code.call(lambda: len(given)), code)


def _targets(given: Any, code: UserCode) -> NDArray[Any]:
    if not _in_memory(given) and not _is_sequence(given):
        raise DataError(f"{code.where}: targets are {_described(given)}; expected an array or a sequence")
    listed = given if _in_memory(given) else code.call(lambda: [given[row] for row in range(len(given))])
    found: NDArray[Any] = code.call(lambda: np.asarray(listed))
    return found


def _pairs(given: Any, code: UserCode) -> Split:
    """A map-style data set: its items are (input, target)."""

    def pair(row: int) -> tuple[Any, Any]:
        item = given[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"expected a pair (input, target), seen {_described(item)}")
        return item[0], item[1]

    inputs = item_inputs(lambda row: pair(row)[0], code.call(lambda: len(given)), code)
    targets = _targets_of_pairs(given, lambda row: pair(row)[1], len(inputs), code)
    return Split(inputs, targets, code.where, f"{code.where}: targets")


def _targets_of_pairs(given: Any, target: Callable[[int], Any], count: int, code: UserCode) -> NDArray[Any]:
    """All targets: as the attribute `targets` where that is what the items say, else item by item."""
    listed = _array_or_none(getattr(given, "targets", None))
    ends = {row: code.sample(target, row) for row in (0, count - 1)}
    if listed is not None and len(listed) == count and all(np.array_equal(listed[r], t) for r, t in ends.items()):
        return listed
    found = []
    for row in range(count):
        found.append(code.sample(target, row))
        if found[row].shape != found[0].shape:
            raise DataError(
                f"{code.where}: the target of sample {row} has shape {found[row].shape}, that of sample 0 "
                f"{found[0].shape}"
            )
    return np.stack(found)


def _array_or_none(listed: Any) -> NDArray[Any] | None:
    """A list of targets as an array, None where it is not one."""
    try:
        array = np.asarray(listed)
    except (TypeError, ValueError):
        return None
    return array if array.ndim and array.dtype.kind in "uifbU" else None


def _class_names(train: Any) -> Any:
    """Names of classes where a data set knows them: `class_names`, or `classes` as torchvision calls it."""
    for attribute in ("class_names", "classes"):
        names = getattr(train, attribute, None)
        if isinstance(names, tuple | list):
            return names
    return ()


def _texts(names: Any, name: str) -> tuple[str, ...]:
    if isinstance(names, str) or not (_is_sequence(names) or isinstance(names, np.ndarray)):
        raise DataError(f"data {name}: class names are {_described(names)}; expected a list of texts")
    return tuple(map(str, names))


def _in_memory(given: Any) -> bool:
    return any(hasattr(given, mark) for mark in _IN_MEMORY)


def _is_sequence(given: Any) -> bool:
    return hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, str | bytes | dict)


def _described(thing: Any) -> str:
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}"
    return "None" if thing is None else f"{type(thing).__name__}"
