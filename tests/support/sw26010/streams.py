"""Passes over rows of values, made as `taihu.kernels.sw26010.streams` plans them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CPES
from taihu.kernels.sw26010.streams import StreamPlan
from taihu.kernels.sw26010.waves import wave

_Kernel = Callable[..., Any]


_LEAST: Final = 1


def execute_stream(
    plan: StreamPlan, inputs: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]], compute: _Kernel
) -> Ledger:
    """Make the pass; returns the ledger as it was counted.

    Args:
        plan: the pieces.
        inputs: `reads` arrays (rows, width).
        outputs: `writes` arrays (rows, width), which may be among the inputs.
        compute: called with copies of a wave's rows of the inputs and buffers for those of the outputs.
    """
    ledgers = []
    for share in plan.shares():
        ledger = Ledger()
        first = share.start
        while first < share.stop:
            cpes = min(CPES, max((share.stop - first) // plan.piece, _LEAST))
            rows = min(plan.piece, share.stop - first)
            part = slice(first, first + cpes * rows)
            local = [np.ascontiguousarray(array[part]).copy() for array in inputs]
            results = [np.empty(array[part].shape, array.dtype) for array in outputs]
            compute(*local, *results)
            for array, result in zip(outputs, results, strict=True):
                array[part] = result
            wave(ledger, plan.unit(rows), cpes)
            first = part.stop
        plan.finish(ledger)
        ledgers.append(ledger)
    return plan.together(ledgers)
