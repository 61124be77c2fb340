"""The memory of tensors as NumPy arrays: nothing is copied where a tensor is contiguous."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.wire.frames.headers import ValueType

SUMMED: Final = MappingProxyType(
    {
        torch.float32: ValueType.FP32,
        torch.float64: ValueType.FP64,
        torch.float16: ValueType.FP16,
        torch.bfloat16: ValueType.BF16,
    }
)
"""The types that the ring and shared memory sum."""


def bytes_of(tensor: Any) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor, shape (n,), sharing its memory."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if len(flat) <= 1:  # such a one is contiguous whatever its stride, which `view` refuses
        flat = flat.as_strided(flat.shape, (1,))
    # Not by `numpy()`, after which a tensor cannot be resized any more, as FSDP does.
    return cast("NDArray[np.uint8]", np.from_dlpack(flat.view(torch.uint8)))


def values_of(tensor: Any) -> NDArray[Any]:
    """The values of a contiguous tensor of one of `SUMMED`, shape (n,), sharing its memory; 16-bit ones as codes."""
    return bytes_of(tensor).view(SUMMED[tensor.dtype].dtype)


@dataclass(frozen=True)
class Parcel:
    """Values of 16 bits that travel, and what brings those that were received to their place."""

    values: NDArray[np.uint16]
    unpack: Callable[[], None]


def letter(data: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Bytes to send: a view, or a copy where their number is odd."""
    return data.view(np.uint16) if len(data) % 2 == 0 else np.append(data, np.uint8(0)).view(np.uint16)


def parcel(data: NDArray[np.uint8]) -> Parcel:
    """A place to receive the bytes that are to lie in `data`: itself, or a copy where their number is odd."""
    values = letter(data)
    if len(data) % 2 == 0:
        return Parcel(values, lambda: None)
    return Parcel(values, lambda: np.copyto(data, values.view(np.uint8)[: len(data)]))
