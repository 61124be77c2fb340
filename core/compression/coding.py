"""Gradients that are exchanged as codes of each layer: the seam of methods that select no values.

A dense exchange brings the mean of all workers' codes, as it would bring that of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.model.layout import Layout
from taihu.core.settings import CompressionSettings

Values = NDArray[np.float32]


class Coder(Protocol):
    """One worker's gradients as codes, in an arena of their own; one thread calls all of these.

    In a step all layers are `encode`d, each late one `follow`s when the mean of its source is there, and all are
    `decode`d when all means are. Whatever is not sent is held back, and added to the next gradient.

    Attributes:
        layout: of the codes: a layer for each of the gradients', in their order, and late ones behind them.
        sources: of each late layer the one that it follows, ascending.
    """

    layout: Layout
    sources: tuple[int, ...]

    def follow_rates(self, rates: NDArray[np.float64]) -> None:
        """A step begins by these rates of the gradients' layers, shape (layers,), -1 where one is not known.

        Where a rate has risen, what was held back counts for no more than it did: `taihu.core.compression.state`.
        """
        ...

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        """Take in a layer's gradient, shape (elements,), and have its codes in the arena of all of them."""
        ...

    def follow(self, late: int, codes: Values) -> None:
        """Have the codes of the late layer `late`, from 0, in their arena, where the mean of its source is."""
        ...

    def decode(self, layer: int, codes: Values, gradient: Values) -> None:
        """Have the mean gradient of a layer, shape (elements,), where the means of all codes are in their arena."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that outlasts a step, live, by name: `residual`, shape (elements,), and whatever else."""
        ...

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` gave; all but `residual` may have no values: layers came in another order then.

        Raises:
            ConfigError: it belongs to other gradients; nothing has changed.
        """
        ...


MakeCoder = Callable[[Layout, CompressionSettings, int], Coder]
"""Makes one of the gradients' layout, each layer of which has one tensor, by settings and the job's seed."""


def make_coder(layout: Layout, settings: CompressionSettings, seed: int) -> Coder | None:
    """The coder of one worker; None where the method sends gradients, or a selection of them."""
    if not settings.method.codes:
        return None
    make: MakeCoder = resolve_name(settings.method.codes)
    return make(layout, settings, seed)
