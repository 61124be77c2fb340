"""safetensors files written piece by piece, so that nothing has to be in memory twice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 8
_NAMES: Final = {"f2": "F16", "f4": "F32", "f8": "F64", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16"}


class Writable(Protocol):
    """A place for bytes."""

    def write(self, data: Any, /) -> object:
        """Take all of `data`."""


class TensorSlot(NamedTuple):
    """The shape and dtype of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: DTypeLike = np.float32


def header_of(slots: Mapping[str, TensorSlot], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a file that holds tensors of these names in this order, whose values follow it."""
    fields: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, slot in slots.items():
        dtype = np.dtype(slot.dtype)
        end = offset + dtype.itemsize * math.prod(slot.shape)
        fields[name] = {"dtype": _NAMES[dtype.str[1:]], "shape": slot.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def write_values(file: Writable | BinaryIO, values: NDArray[Any], dtype: DTypeLike = np.float32) -> None:
    """Append the values of a tensor, or of a piece of it, as `dtype`."""
    file.write(np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<")).reshape(-1).view(np.uint8).data)
