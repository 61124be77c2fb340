"""Inputs of examples from arrays and from sequences of the user's own, checked and brought to one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.process.programs.user_code import explained
from taihu.core.system.threads import Lock
from taihu.worker.data.base.dataset import Rows, Targets
from taihu.worker.data.base.statistics import Statistics, image_statistics, read_statistics, spread_rows

_MOST_SAMPLED = 2048
# Of a picture that people look at: grey, with transparency, colours, colours with transparency.
_MOST_CHANNELS = 4
_FORMS = "(n, height, width, channels), (n, height, width) or (n, features)"


class Inputs(Protocol):
    """Inputs of one shape without their targets."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (height, width, channels) or (features,)."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether reading takes no longer than copying."""
        ...

    def __len__(self) -> int:
        """Number of inputs."""
        ...

    def read(self, rows: Rows, out: NDArray[Any]) -> None:
        """Write the raw inputs of `rows` (n,) into `out` (n, *shape), float32 or float64; as `Examples.read`."""
        ...

    def statistics(self, rows: Rows) -> Statistics:
        """Mean and deviation of the inputs `rows`, or of some of them where all would take long."""
        ...


@dataclass(frozen=True, eq=False)
class Paired:
    """Inputs with their targets; where `rows` are given, only those of the inputs, in this order.

    `offset`, float64 (channels,) or (features,), is taken away from inputs before they are rounded to float32.
    """

    inputs: Inputs
    values: Targets
    rows: Rows | None = None
    offset: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Read the inputs that belong to `rows`."""
        own = rows if self.rows is None else self.rows[rows]
        if self.offset is None:
            self.inputs.read(own, out)
            return
        raw = np.empty(out.shape)
        self.inputs.read(own, raw)
        np.subtract(raw, self.offset, out=out, casting="same_kind")

    def targets(self, rows: Rows) -> Targets:
        """The values of `rows`."""
        found: Targets = self.values[rows]
        return found

    def moved(self, offset: NDArray[np.float64] | None) -> Paired:
        """The same with another `offset`."""
        return replace(self, offset=offset)


@dataclass(frozen=True, eq=False)
class ArrayInputs:
    """The rows of an array (n, *shape), in memory or mapped from a file."""

    array: NDArray[Any]
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row of the array."""
        return self.array.shape[1:]

    @property
    def in_memory(self) -> bool:
        """Whether the array is in memory; one that is mapped from a file is not."""
        return not is_mapped(self.array)

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: Rows, out: NDArray[Any]) -> None:
        """Copy rows of the array."""
        out[...] = self.array[rows]

    def statistics(self, rows: Rows) -> Statistics:
        """Mean and deviation of the array, of 2,048 rows where it is mapped."""
        if not self.in_memory:
            rows = rows[spread_rows(len(rows), _MOST_SAMPLED)]
        elif self.array.dtype == np.uint8 and self.array.ndim == 4 and len(rows) == len(self.array):
            return image_statistics(self.array)
        return read_statistics(self.read, rows, self.shape, self.where)


@dataclass(frozen=True)
class UserCode:
    """Code in a `file` of the user's own, which is called by one thread at a time; `where` names what it gives."""

    file: Path
    where: str
    lock: Lock = field(default_factory=Lock)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call `function`.

        Raises:
            DataError: it fails; the message has file and line.
        """
        with self.lock, explained(self.file, thing="data", error=DataError):
            return function()

    def sample(self, get: Callable[[int], Any], row: int) -> NDArray[Any]:
        """Input of `get(row)`, as an array.

        Raises:
            DataError: it fails, or returns no array; the message has the row, and file and line.
        """
        try:
            found: NDArray[Any] = self.call(lambda: np.asarray(get(row)))
        except DataError as error:
            raise DataError(f"{self.where}: sample {row}: {error}") from None
        return found


@dataclass(frozen=True, eq=False)
class ItemInputs:
    """Inputs that `get(row)` of the user's code returns, read one by one when they are needed."""

    get: Callable[[int], Any]
    count: int
    shape: tuple[int, ...]
    code: UserCode

    @property
    def in_memory(self) -> bool:
        """Never: the user's code is called for every row."""
        return False

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Rows, out: NDArray[Any]) -> None:
        """Call the user's code for each of `rows`."""
        for place, row in enumerate(rows.tolist()):
            item = _item(self.get, row, self.code)
            if item.shape != self.shape:
                raise DataError(
                    f"{self.code.where}: sample {row} has shape {item.shape}, expected {self.shape}, that of sample 0"
                )
            out[place] = item

    def statistics(self, rows: Rows) -> Statistics:
        """Mean and deviation of 2,048 rows."""
        return read_statistics(self.read, rows[spread_rows(len(rows), _MOST_SAMPLED)], self.shape, self.code.where)


def item_inputs(get: Callable[[int], Any], count: int, code: UserCode) -> ItemInputs:
    """The inputs that the user's `get(0)` to `get(count - 1)` return, all of the shape of the first one.

    Raises:
        DataError: there are none, `get(0)` fails, or it returns something else than numbers of (H, W, C), (H, W),
            (F,) or ().
    """
    if not count:
        raise DataError(f"{code.where}: it is empty")
    return ItemInputs(get, count, _item(get, 0, code).shape, code)


def array_inputs(array: NDArray[Any], where: str) -> ArrayInputs:
    """The inputs in `array` (n, H, W, C), (n, H, W), (n, F) or (n,), of any real dtype; `where` names it.

    Raises:
        DataError: it has another shape, is empty, or holds something else than finite numbers.
    """
    _check_numbers(array.dtype, where)
    if not 1 <= array.ndim <= 4 or 0 in array.shape:
        raise DataError(f"{where}: inputs of shape {array.shape}; expected {_FORMS}, none of them empty")
    shaped = array[..., np.newaxis] if array.ndim in {1, 3} else array
    _check_channels(shaped.shape[1:], where, "x.transpose(0, 2, 3, 1) or np.moveaxis(x, 1, -1)")
    if array.dtype.kind == "f" and not is_mapped(array):
        _check_finite(array, where)
    return ArrayInputs(shaped, where)


def _item(get: Callable[[int], Any], row: int, code: UserCode) -> NDArray[Any]:
    """One input as (H, W, C) or (F,)."""
    item, where = code.sample(get, row), code.where
    _check_numbers(item.dtype, f"{where}: sample {row}")
    if item.ndim > 3 or item.size == 0:
        raise DataError(
            f"{where}: sample {row} has shape {item.shape}; expected (height, width, channels), (height, width) or "
            "(features,), not empty"
        )
    shaped = item[..., np.newaxis] if item.ndim in {0, 2} else item
    _check_channels(shaped.shape, where, "x.transpose(1, 2, 0), of a tensor x.permute(1, 2, 0)")
    return shaped


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array, or what it is a view of, lies in a file."""
    base: Any = array
    while base is not None:
        if isinstance(base, np.memmap):
            return True
        base = getattr(base, "base", None)
    return False


def _check_numbers(dtype: np.dtype[Any], where: str) -> None:
    if dtype.kind not in "uifb":
        raise DataError(f"{where}: inputs of {dtype}; expected numbers: uint8, float32, ...")


def _check_channels(shape: tuple[int, ...], where: str, remedy: str) -> None:
    """Refuse images with channels first: few rows of many channels each are none."""
    if len(shape) == 3 and shape[0] <= _MOST_CHANNELS < min(shape[1:]):
        raise DataError(
            f"{where}: inputs of shape {shape} look like (channels, height, width); expected (height, width, "
            f"channels), channels last: transpose them, {remedy}"
        )


def _check_finite(array: NDArray[Any], where: str) -> None:
    rows = max(1, (1 << 20) * len(array) // array.size)
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        finite = np.isfinite(part.reshape(len(part), -1)).all(axis=1)
        if not finite.all():
            row = start + int(finite.argmin())
            raise DataError(f"{where}: the input of sample {row} is not finite; replace or drop it")
