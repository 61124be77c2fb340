"""Gradients that are the means of all workers, and those that are this worker's own: pure."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Mapping, Sequence

import torch

from taihu.errors import RunError

__all__ = ["Means"]


class Means:
    """Knows parameters, by their identity, whose gradients are means since the last update or `zero_grad`."""

    def __init__(self) -> None:
        self._means: set[int] = set()
        self._local: set[int] = set()
        # Means that an update has used, and their versions then: they may still be where they were, and as they were.
        self._used: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def brought(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """The gradients of these are means now."""
        ids = set(map(id, parameters))
        self._means |= ids
        self._local -= ids

    def added_up(self, parameter: torch.nn.Parameter) -> None:
        """Something of this worker's alone was added to the gradient of a parameter."""
        self._means.discard(id(parameter))
        self._local.add(id(parameter))

    def used(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """An update has used the gradients of these."""
        for parameter in parameters:
            key, gradient = id(parameter), parameter.grad
            if key in self._means and gradient is not None:
                self._used[key] = weakref.ref(gradient), gradient._version
            elif not self._is_as_used(parameter):
                self._used.pop(key, None)
            self._means.discard(key)

    def forget(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """The gradients of these are forgotten."""
        ids = set(map(id, parameters))
        self._means -= ids
        self._local -= ids
        for each in ids & self._used.keys():
            del self._used[each]

    def keep(self, ids: Container[int]) -> None:
        """Know nothing of parameters other than these."""
        self._means = {each for each in self._means if each in ids}
        self._local = {each for each in self._local if each in ids}

    def local(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Those whose gradients were added up, and not exchanged since."""
        if not self._local:
            return []
        return [p for p in parameters if id(p) in self._local and p.grad is not None]

    def rest(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Those that have a gradient which is no mean, nor was one when an update used it."""
        means = self._means
        return [p for p in parameters if p.grad is not None and id(p) not in means and not self._is_as_used(p)]

    def check(self, rest: Sequence[torch.nn.Parameter], names: Mapping[int, str]) -> None:
        """Refuse gradients that may be something else than what is to be exchanged.

        Raises:
            RunError: they were added up in `no_sync()`, or changed since they were set, as clipping does.
        """
        remedy = "call optimizer.synchronize() when gradients are complete, before anything is done to them"
        for parameter in rest:
            name = names.get(id(parameter), "a parameter")
            if id(parameter) in self._local:
                raise RunError(
                    f"step(): the gradient of {name} was added up in no_sync(), and not exchanged: let the last "
                    f"backward lie outside of the block, or {remedy}"
                )
            gradient = parameter.grad
            if gradient is not None and gradient._version and id(parameter) not in self._used:
                raise RunError(
                    f"step(): the gradient of {name} was set by hand and changed since, and not exchanged: {remedy}"
                )

    def _is_as_used(self, parameter: torch.nn.Parameter) -> bool:
        """Whether its gradient is the mean that an update has used, which nobody has changed or replaced since."""
        known = self._used.get(id(parameter))
        if known is None or id(parameter) in self._local:
            return False
        gradient = parameter.grad
        return gradient is not None and known[1] == gradient._version and known[0]() is gradient
