"""Selection of the largest magnitudes, computed by the passes that `taihu.kernels.sw26010.threshold` counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from support.sw26010.streams import execute_stream
from taihu.kernels.base.jit import kernel
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.streams import plan_stream
from taihu.kernels.sw26010.threshold import COLLECT, DIGITS, collected, histogram


class Selected(NamedTuple):
    """The threshold, the ascending positions of all that reaches it, and the ledger."""

    threshold: float
    indices: NDArray[np.int64]
    ledger: Ledger


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
    for shift, bins in DIGITS:
        counts = np.zeros(bins, np.int64)
        plan = plan_stream(histogram(bins), values.size, core_groups=core_groups)
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
    plan = plan_stream(COLLECT, values.size, core_groups=core_groups)
    collect = execute_stream(plan, [bits], [], lambda part: parts.append((part[:, 0] & 0x7FFFFFFF) >= least))
    indices = np.flatnonzero(np.concatenate(parts))
    return Selected(float(threshold), indices, collected(ledger, collect, len(indices)))
