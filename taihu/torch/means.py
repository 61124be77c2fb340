"""Gradients that are the means of all workers, and those that are this worker's own: pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import torch

from taihu.errors import RunError

__all__ = ["Means"]


class Means:
    """Knows parameters, by their identity, whose gradients are means since the last update or `zero_grad`."""

    def __init__(self) -> None:
        self._means: set[int] = set()
        self._local: set[int] = set()
        # Means that an update has used: they may still be where they were.
        self._used: set[int] = set()

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
        ids = set(map(id, parameters))
        self._used = (self._used - ids) | (self._means & ids)
        self._means -= ids

    def forget(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """The gradients of these are forgotten."""
        ids = set(map(id, parameters))
        self._means -= ids
        self._used -= ids
        self._local -= ids

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
        """Those that have a gradient which is no mean."""
        means = self._means
        return [p for p in parameters if p.grad is not None and id(p) not in means]

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
            if parameter.grad is not None and parameter.grad._version and id(parameter) not in self._used:
                raise RunError(
                    f"step(): the gradient of {name} was set by hand and changed since, and not exchanged: {remedy}"
                )
