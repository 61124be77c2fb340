"""The place of a script in its loops, and what it will draw at random from there on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
import torch

__all__ = ["Loops", "Position", "drawn_from", "generators"]

T = TypeVar("T")

_NUMPY: Final = "MT19937"


def generators() -> dict[str, Any]:
    """The states of the generators that scripts draw from: Python's, NumPy's, PyTorch's and its devices'."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": [version, torch.from_numpy(np.array(numbers, dtype=np.int64)), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def drawn_from(states: dict[str, Any]) -> None:
    """Have all generators go on from these states."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((_NUMPY, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


@dataclass(frozen=True)
class Position:
    """A place between two passes of a loop.

    Attributes:
        epoch: the pass of `epochs`, from 0.
        loop: the loop over batches within it, from 0.
        batches: passes that this loop has behind it.
    """

    epoch: int = 0
    loop: int = 0
    batches: int = 0


@dataclass
class Loops:
    """The loops of a script that goes on at a place.

    What a loop draws from generators as it begins, as for an order of samples, it draws again where it goes on.

    Attributes:
        passed: is called when a pass over a batch has ended.
        place: as far as the script has come.
        at_epoch, at_loop: the states of the generators when the epoch and the loop began.
        goes_on: the place from which the script goes on, until it is there.
        now: the states of the generators there.
    """

    passed: Callable[[], None]
    place: Position = field(default_factory=Position)
    at_epoch: dict[str, Any] = field(default_factory=generators)
    at_loop: dict[str, Any] = field(default_factory=generators)
    goes_on: Position | None = None
    now: dict[str, Any] = field(default_factory=dict)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of epochs, from the one that the script is in."""
        first = self.place.epoch if self.goes_on is None else self.goes_on.epoch
        for epoch in range(first, count):
            if self.goes_on is not None:
                drawn_from(self.at_epoch)
            else:
                self.at_epoch = generators()
            self.place = Position(epoch)
            yield epoch
            self.goes_on = None
            self.place = Position(epoch + 1)
            self.at_epoch = self.at_loop = generators()

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches of a loop, from the one that the script is at."""
        try:
            for batch in self._left(batches):
                yield batch
                self.place = replace(self.place, batches=self.place.batches + 1)
                self.passed()
        finally:
            self.place = replace(self.place, loop=self.place.loop + 1, batches=0)

    def _left(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches that the loop has before it."""
        goes_on = self.goes_on
        if goes_on is None or not goes_on.batches:
            self.goes_on = None
            self.at_loop = generators()
            return iter(batches)
        if self.place.loop < goes_on.loop:
            return iter(())
        drawn_from(self.at_loop)
        left = _without(batches, goes_on.batches)
        drawn_from(self.now)
        self.place = replace(self.place, batches=goes_on.batches)
        self.goes_on = None
        return left


def _without(batches: Iterable[T], count: int) -> Iterator[T]:
    """The batches behind the first `count`, which are not even loaded where they can be counted off."""
    if isinstance(batches, Sequence):
        return (batches[index] for index in range(count, len(batches)))
    left = iter(batches)
    for _ in range(count):
        next(left, None)
    return left
