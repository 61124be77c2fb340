"""A block of `join()`: workers that have no batches left take part in the backwards of the others."""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.torch.gradients.exchanged import ExchangedSet

_Sums = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Joining:
    """Whoever begins a backward tells all, and which optimizers have gradients that it adds to.

    Those are means of backwards before, alike on all: a worker that follows brings its own then, and zeros for all
    other optimizers, so that sums are those of everybody's batches.

    Args:
        sums: of all workers, who call it together.
        rank: of this worker.
        size: number of workers.
        exchanged: returns the parameters that are exchanged.
        local: returns the identities of those whose gradients are this worker's own.
        comes_back: whether gradients do; where servers update there are no means to add to.
    """

    def __init__(
        self,
        sums: _Sums,
        rank: int,
        size: int,
        exchanged: Callable[[], ExchangedSet],
        local: Callable[[], Container[int]],
        *,
        comes_back: bool,
    ) -> None:
        self._sums, self._rank, self._size = sums, rank, size
        self._exchanged, self._local, self._comes_back = exchanged, local, comes_back
        self._own = 0
        # Of the present backward, before it adds to any gradient.
        self._task, self._has_means = -1, np.zeros(0)
        hooked = [p for p in exchanged().parameters if p.requires_grad] if comes_back else []
        self._hooks = [p.register_hook(self._look) for p in hooked]

    def close(self) -> None:
        """The block is over."""
        for hook in self._hooks:
            hook.remove()

    def begins(self) -> None:
        """This worker is in a backward whose gradients are exchanged."""
        self._look()
        self._task = -1
        self._own += 1
        self._tell(1.0, self._has_means)

    def hears(self) -> NDArray[np.float64] | None:
        """For each optimizer whether a backward that others have begun adds to its gradients; None if none has."""
        count = len(self._exchanged().optimized)
        told = self._tell(0.0, np.zeros(count))
        return told[self._size :] if told[: self._size].any() else None

    def most(self) -> int | None:
        """The worker that has had most backwards, the first of several; None where all have had as many."""
        counts = self._tell(self._own, np.zeros(0))
        return None if len(set(counts.tolist())) == 1 else int(np.argmax(counts))

    def _tell(self, own: float, flags: NDArray[np.float64]) -> NDArray[np.float64]:
        said = np.zeros(self._size + len(flags))
        said[self._rank] = own
        said[self._size :] = flags
        return self._sums(said)

    def _look(self, _: torch.Tensor | None = None) -> None:
        """Some gradient is about to be added to."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task, self._has_means = task, self._seen()

    def _seen(self) -> NDArray[np.float64]:
        exchanged, local = self._exchanged(), self._local()
        seen = np.zeros(len(exchanged.optimized))
        if not self._comes_back:
            return seen
        for owner, parameter in zip(exchanged.owners, exchanged.parameters, strict=True):
            gradient = parameter.grad
            if gradient is not None and id(parameter) not in local and not seen[owner] and gradient.any():
                seen[owner] = 1.0
        return seen
