"""Selection of the largest magnitudes: an exact threshold by three passes of histograms, then one that collects.

Without its sign bit, a fp32 as an integer is ordered as its magnitude is. The digits of the k-th largest one are
found from the highest: every CPE counts the digits of its pieces in LDM, and the counts are summed over the mesh.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel
from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CPES
from taihu.kernels.sw26010.streams import Pass, execute_stream, plan_stream

_DIGITS: Final = ((20, 2048), (10, 1024), (0, 1024))
_COLLECT: Final = Pass("collect", reads=1, writes=0, arithmetic=2, flops=1, scattered=1)
_ENTRY_BYTES: Final = 8  # A position and a value.


class Selected(NamedTuple):
    """The threshold, the ascending positions of all that reaches it, and the ledger."""

    threshold: float
    indices: NDArray[np.int64]
    ledger: Ledger


def _histogram(bins: int) -> Pass:
    return Pass("histogram", reads=1, writes=0, arithmetic=2, flops=0, scattered=2, columns=bins, sums=bins)


def selection_cost(elements: int, selected: int, core_groups: int = 1) -> Ledger:
    """The ledger of finding the threshold of `elements` fp32 values and collecting the `selected` ones."""
    ledger = Ledger(core_groups=core_groups)
    for _, bins in _DIGITS:
        ledger = ledger.then(plan_stream(_histogram(bins), elements, core_groups=core_groups).cost())
    return _collected(ledger, plan_stream(_COLLECT, elements, core_groups=core_groups).cost(), selected)


def _collected(ledger: Ledger, collect: Ledger, selected: int) -> Ledger:
    collect.alone(transfers=[Transfer(((_ENTRY_BYTES * -(-selected // CPES), CPES),))])
    ledger = ledger.then(collect)
    ledger.compulsory_bytes = collect.compulsory_bytes + _ENTRY_BYTES * selected
    return ledger


@kernel
def _count(values: NDArray[np.int32], least: int, most: int, shift: int, counts: NDArray[np.int64]) -> None:
    for i in range(values.shape[0]):
        magnitude = values[i, 0] & 0x7FFFFFFF
        if least <= magnitude <= most:
            counts[(magnitude - least) >> shift] += 1


def select_largest(values: NDArray[Any], k: int, *, core_groups: int = 1) -> Selected:
    """Everything whose magnitude is not below the k-th largest one's.

    Args:
        values: float32 (n,), without NaN.
        k: 1 to n.
        core_groups: 1 to 4.

    Raises:
        BlockingError: another type or shape, or k out of range.
    """
    if values.dtype != np.float32 or values.ndim != 1 or not 1 <= k <= values.size:
        raise BlockingError(
            f"selection: expected float32 (n,) and k of 1 to n, seen {values.dtype} {values.shape} and {k}; flatten "
            "the gradient, or choose another k"
        )
    bits = np.ascontiguousarray(values).view(np.int32).reshape(-1, 1)
    ledger = Ledger(core_groups=core_groups)
    least, most, rank = 0, 0x7FFFFFFF, k
    for shift, bins in _DIGITS:
        counts = np.zeros(bins, np.int64)
        plan = plan_stream(_histogram(bins), values.size, core_groups=core_groups)
        bounds = (least, most, shift, counts)
        ledger = ledger.then(execute_stream(plan, [bits], [], lambda part, bounds=bounds: _count(part, *bounds)))
        above = np.cumsum(counts[::-1])
        place = int(np.searchsorted(above, rank))
        digit = bins - 1 - place
        rank -= int(above[place] - counts[digit])
        least += digit << shift
        most = least + (1 << shift) - 1
    threshold = np.array(least, np.int32).view(np.float32)
    parts: list[NDArray[np.bool_]] = []
    plan = plan_stream(_COLLECT, values.size, core_groups=core_groups)
    collect = execute_stream(plan, [bits], [], lambda part: parts.append((part[:, 0] & 0x7FFFFFFF) >= least))
    indices = np.flatnonzero(np.concatenate(parts))
    return Selected(float(threshold), indices, _collected(ledger, collect, len(indices)))
