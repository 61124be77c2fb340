"""The 16-bit values of mixed precision, beside the fp32 arenas that a worker computes in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.base.half import HalfKind, from_half
from taihu.kernels.half_sums import narrow
from taihu.worker.memory.pages import Pages


class HalfArenas:
    """Gradients as they are sent, and parameters as they come, as codes of `taihu.kernels.base.half`.

    Both have shape (elements,), uint16. Gradients are there while they are sent. Parameters stay with `keeps`, which
    is stage 2 of ZeRO; else each group is given back as soon as it has been widened. `complete` says that all that
    stay have come.
    """

    def __init__(self, elements: int, value_type: ValueType, *, keeps: bool) -> None:
        assert value_type.half_kind is not None  # noqa: S101
        self.kind: HalfKind = value_type.half_kind
        self.value_type = value_type
        self.keeps = keeps
        self.complete = False
        self._gradients = Pages(elements, np.uint16)
        self._parameters = Pages(elements, np.uint16)

    @property
    def gradients(self) -> NDArray[Any]:
        """The gradients as they are sent."""
        return self._gradients.values

    @property
    def parameters(self) -> NDArray[Any]:
        """The parameters as they come."""
        return self._parameters.values

    def narrow(self, start: int, gradients: NDArray[np.float32], largest: float) -> bool:
        """Take `gradients`, shape (n,), as elements [start, start + n); returns whether none exceeds `largest`."""
        return narrow(gradients, self.kind, self.gradients[start : start + len(gradients)], largest)

    def release_gradients(self, start: int, stop: int) -> None:
        """Nobody sends elements [start, stop) any more."""
        self._gradients.release(start, stop)

    def widen(self, start: int, out: NDArray[np.float32]) -> None:
        """Set `out`, shape (n,), to the parameters [start, start + n), which are not kept unless all are."""
        stop = start + len(out)
        from_half(self.parameters[start:stop], self.kind, out)
        if not self.keeps:
            self._parameters.release(start, stop)
