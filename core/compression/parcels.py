"""A selection as one parcel of a size that all ranks know beforehand, so that one gather carries it.

A parcel is two little-endian uint32, the numbers of values and of bytes of index sections; the values, which may be
codes of a few bits; the steps of these, a bfloat16 for each unit; the sections (`kernels.pack`), of one piece that
has all elements. Bytes behind them mean nothing. Rooms are multiples of 8 bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError
from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.base.half import from_half, to_half
from taihu.kernels.packing import pack, unpack
from taihu.kernels.packing.few_bits import STEP_BYTES, pack_codes, read_codes
from taihu.kernels.packing.sections import MAX_PARAMETER, MAX_VARINT_BYTES
from taihu.kernels.selection.scatter import make_marks, scatter_add

_HEADER: Final = np.dtype("<u4")
_HEADER_BYTES: Final = 2 * _HEADER.itemsize
_ALIGNED: Final = 8

Bytes = NDArray[np.uint8]


def sections_bound(count: int, elements: int) -> int:
    """Bytes that always suffice for the section of up to `count` positions in one piece of `elements`.

    `kernels.packing.sections` takes the encoding of the fewest bytes: at most a bitmap, and at most Rice's of any
    parameter k, whose quotients together are below `elements / 2**k`.
    """
    bitmap = -(-elements // 8)
    rest = elements - count
    bits = min(count * (k + 1) + (rest >> k) for k in range(MAX_PARAMETER + 1))
    return 1 + min(bitmap, MAX_VARINT_BYTES + 1 + -(-bits // 8))


class Parcels:
    """Parcels of selections from arrays of `elements` values; buffers are allocated once.

    Args:
        elements: of the array, below 2**31.
        most: entries that a selection has at most.
        value_type: of the selected values.
        units: shape (units, 2): starts and stops of what has a step of its own, ascending; one by default.
    """

    def __init__(
        self, elements: int, most: int, value_type: ValueType, units: NDArray[np.int64] | None = None
    ) -> None:
        self._bounds = np.array([[0, elements]], dtype=np.int64)
        self._units = self._bounds if units is None else units
        self._type = value_type
        self._indices = np.empty(most, dtype=np.int32)
        self._values = np.empty(0 if value_type is ValueType.FP32 else most, dtype=np.float32)
        self._codes = np.empty(most if value_type.few_bits else 0, dtype=np.uint8)
        self._steps = np.empty(len(self._units) if value_type.few_bits else 0, dtype=np.float32)
        self._marks = make_marks(elements)

    def room(self, most: int) -> int:
        """Bytes of a parcel of up to `most` entries."""
        size = self._places_at(most) + sections_bound(most, int(self._bounds[0, 1]))
        return -(-size // _ALIGNED) * _ALIGNED

    def write(
        self,
        indices: NDArray[np.int32],
        values: NDArray[Any],
        parcel: Bytes,
        steps: NDArray[np.float32] | None = None,
    ) -> None:
        """Write a selection to `parcel`, shape (room(len(indices)),) or larger.

        Args:
            indices: shape (k,), int32, ascending, each once.
            values: shape (k,), fp32 or 16-bit codes, or codes of a few bits, one in each byte.
            parcel: out; contiguous, its first byte at an address that 8 divides.
            steps: shape (units,), of a few bits.
        """
        values_end, places = _HEADER_BYTES + self._type.bytes_of(len(indices)), self._places_at(len(indices))
        held = parcel[_HEADER_BYTES:values_end]
        own = self._codes[: len(indices)] if self._type.few_bits else held.view(self._type.dtype)
        count, size = pack(indices, values, self._bounds, own, parcel[places:])
        if steps is not None:
            pack_codes(own, self._type.few_bits, held)
            codes = np.empty(len(steps), dtype=np.uint16)
            to_half(steps, "bf16", codes)
            parcel[values_end:places] = codes.view(np.uint8)
        parcel[:_HEADER_BYTES].view(_HEADER)[:] = count, size

    def sum(self, parcels: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Set `out` to the sum of all parcels' selections, in their order; zeros where nobody selected.

        Args:
            parcels: shape (ranks, room), contiguous.
            out: shape (elements,).

        Raises:
            FrameError: a parcel is damaged; `out` has any values then.
        """
        out[:] = 0.0
        self._marks[:] = 0
        for rank, parcel in enumerate(parcels):
            try:
                indices, values = self._read(parcel)
                scatter_add(indices, values, 0, out, self._marks)
            except ValueError as error:
                raise FrameError(f"the selection of rank {rank}: {error}") from None

    def _read(self, parcel: Bytes) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        count, size = map(int, parcel[:_HEADER_BYTES].view(_HEADER))
        places = self._places_at(count)
        if count > len(self._indices) or places + size > len(parcel):
            raise ValueError(
                f"{count} values and {size} bytes of positions in {len(parcel)} bytes; expected at most "
                f"{len(self._indices)} values, and all of it inside"
            )
        unpack(parcel[places : places + size], self._bounds, count, self._indices)
        indices, values = self._indices[:count], self._values[:count]
        values_end = _HEADER_BYTES + self._type.bytes_of(count)
        held = parcel[_HEADER_BYTES:values_end]
        if self._type.few_bits:
            from_half(np.frombuffer(parcel[values_end:places].tobytes(), dtype="<u2"), "bf16", self._steps)
            read_codes(held, self._type.few_bits, indices, self._units, self._steps, values)
        elif self._type.half_kind is not None:
            from_half(held.view(np.uint16), self._type.half_kind, values)
        else:
            values = held.view(np.float32)
        return indices, values

    def _places_at(self, count: int) -> int:
        """The place of the sections in a parcel with so many values."""
        return _HEADER_BYTES + self._type.bytes_of(count) + len(self._steps) * STEP_BYTES
