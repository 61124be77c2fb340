"""Gradients that are the means of all workers, and those that are this worker's own: pure."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from itertools import repeat
from operator import is_

import torch

from taihu.core.base.errors import RunError

_Version = tuple[weakref.ref[torch.Tensor], int]
"""A gradient, and its version when it was looked at."""


class Means:
    """Knows parameters, by their identity, whose gradients are means since the last update or `zero_grad`."""

    def __init__(self) -> None:
        self._means: set[int] = set()
        self._local: set[int] = set()
        # Means that an update has used, and their versions then: they may still be where they were, and as they were.
        self._used: dict[int, _Version] = {}
        # Of gradients that are no means, as they were when they were right to be exchanged: added up in backward, or
        # behind an exchange that others of their group were in.
        self._as_set: dict[int, _Version] = {}

    def brought(self, ids: Iterable[int]) -> None:
        """The gradients of the parameters with these identities are means now."""
        self._means.update(ids)
        if self._local or self._as_set:
            self._leave(frozenset(ids))

    def added_up(self, parameter: torch.nn.Parameter) -> None:
        """Something of this worker's alone was added to the gradient of a parameter."""
        key, gradient = id(parameter), parameter.grad
        known = self._as_set.get(key)
        self._means.discard(key)
        if key not in self._local:
            self._local.add(key)
            self._note(parameter)
        elif known is not None and gradient is not None and _is_of(known, gradient):
            # Autograd adds in place, once. Where more was done to it, it is not as it was added up.
            if gradient._version == known[1] + 1:
                self._note(parameter)
            else:
                del self._as_set[key]

    def unchanged(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Those with a gradient that is no mean, and that is as it was set or added up."""
        known = self._means
        return [p for p in parameters if id(p) not in known and p.grad is not None and self._is_as_set(p)]

    def taken_along(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """The gradients of these, which were `unchanged`, may have been summed with others of their group."""
        for parameter in parameters:
            if id(parameter) not in self._means:
                self._note(parameter)

    def _note(self, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None:
            self._as_set[id(parameter)] = weakref.ref(gradient), gradient._version

    def _is_as_set(self, parameter: torch.nn.Parameter) -> bool:
        gradient = parameter.grad
        if gradient is None:
            return False
        known = self._as_set.get(id(parameter))
        if known is not None and _is_of(known, gradient):
            return bool(known[1] == gradient._version)
        return id(parameter) not in self._local and (not gradient._version or id(parameter) in self._used)

    def used(self, parameters: Sequence[torch.nn.Parameter], ids: Set[int]) -> None:
        """An update has used the gradients of these; `ids` are their identities."""
        means, used = self._means, self._used
        gradients = [parameter.grad for parameter in parameters]
        if means >= ids and not any(map(is_, gradients, repeat(None))):
            known = [(weakref.ref(gradient), gradient._version) for gradient in gradients]
            used.update(zip(map(id, parameters), known, strict=True))
        else:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                key = id(parameter)
                if gradient is not None and key in means:
                    used[key] = weakref.ref(gradient), gradient._version
                elif not self._is_as_used(parameter):
                    used.pop(key, None)
        means.difference_update(ids)

    def forget(self, ids: Set[int]) -> None:
        """The gradients of the parameters with these identities are forgotten."""
        self._means -= ids
        if self._local or self._as_set:
            self._leave(ids)
        if self._used.keys() <= ids:
            self._used.clear()
        for each in ids & self._used.keys():
            del self._used[each]

    def _leave(self, ids: Set[int]) -> None:
        """Nothing is known of gradients of these that are no means."""
        self._local -= ids
        for each in ids & self._as_set.keys():
            del self._as_set[each]

    def keep(self, ids: Container[int]) -> None:
        """Know nothing of parameters other than these."""
        self._means = {each for each in self._means if each in ids}
        self._local = {each for each in self._local if each in ids}
        self._as_set = {each: known for each, known in self._as_set.items() if each in ids}

    @property
    def local_ids(self) -> Set[int]:
        """The identities of parameters whose gradients were added up, and not exchanged since."""
        return self._local

    def local(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Those whose gradients were added up, and not exchanged since."""
        if not self._local:
            return []
        return [p for p in parameters if id(p) in self._local and p.grad is not None]

    def rest(self, parameters: Iterable[torch.nn.Parameter], ids: Set[int]) -> list[torch.nn.Parameter]:
        """Those that have a gradient which is no mean, nor was one when an update used it; `ids` are of all."""
        means = self._means
        if means >= ids:
            return []
        return [p for p in parameters if id(p) not in means and p.grad is not None and not self._is_as_used(p)]

    def check(self, rest: Sequence[torch.nn.Parameter], names: Mapping[int, str]) -> None:
        """Refuse gradients that may be something else than what is to be exchanged.

        Raises:
            RunError: they were changed since they were set or added up, as clipping does.
        """
        remedy = "call optimizer.synchronize() when gradients are complete, before anything is done to them"
        for parameter in rest:
            if not self._is_as_set(parameter):
                how = "added up in no_sync()" if id(parameter) in self._local else "set by hand"
                raise RunError(
                    f"step(): the gradient of {names.get(id(parameter), 'a parameter')} was {how} and changed since, "
                    f"and not exchanged: {remedy}"
                )

    def _is_as_used(self, parameter: torch.nn.Parameter) -> bool:
        """Whether its gradient is the mean that an update has used, which nobody has changed or replaced since."""
        known = self._used.get(id(parameter))
        if known is None or id(parameter) in self._local:
            return False
        gradient = parameter.grad
        return gradient is not None and known[1] == gradient._version and known[0]() is gradient


def _is_of(known: _Version, gradient: torch.Tensor) -> bool:
    return known[0]() is gradient
