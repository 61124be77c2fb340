"""The place of a script in its loops, and what it will draw at random from there on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
import torch

from taihu.core.system.chance import script_generator, set_script_generator
from taihu.torch.kept.elastic_sampler import ElasticSampler

T = TypeVar("T")

_NUMPY: Final = "MT19937"


def generators() -> dict[str, Any]:
    """The states of the generators that scripts draw from: Python's, NumPy's, PyTorch's and its devices'."""
    version, numbers, gauss = script_generator()
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
    set_script_generator((version, tuple(numbers.tolist()), gauss))
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
        samples: those of all workers that it has seen; 0 where nobody counts them.
    """

    epoch: int = 0
    loop: int = 0
    batches: int = 0
    samples: int = 0

    def on_others(self, before: int, now: int) -> Position:
        """The place of so many workers, at which all together have seen as many samples as those before."""
        return self if self.samples else replace(self, batches=self.batches * before // now)


@dataclass
class Loops:
    """The loops of a script that goes on at a place.

    What a loop draws from generators as it begins, as for an order of samples, it draws again where it goes on.

    Attributes:
        place: as far as the script has come.
        at_epoch, at_loop: the states of the generators when the epoch and the loop began.
        goes_on: the place from which the script goes on, until it is there.
        now: the states of the generators there.
    """

    place: Position = field(default_factory=Position)
    at_epoch: dict[str, Any] = field(default_factory=generators)
    at_loop: dict[str, Any] = field(default_factory=generators)
    goes_on: Position | None = None
    now: dict[str, Any] = field(default_factory=generators)

    @property
    def is_at(self) -> Position:
        """The place of the script, which it has yet to come to where it goes on."""
        return self.place if self.goes_on is None else self.goes_on

    @property
    def draws_from(self) -> dict[str, Any]:
        """The states of the generators there."""
        return generators() if self.goes_on is None else self.now

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
        """The batches that a loop has before it: `passed` follows each, and `ended` the loop."""
        goes_on = self.goes_on
        if goes_on is None or not goes_on.batches:
            self.goes_on = None
            self.at_loop = generators()
            return iter(batches)
        if self.place.loop < goes_on.loop:
            return iter(())
        drawn_from(self.at_loop)
        left = _left(batches, goes_on)
        drawn_from(self.now)
        self.place = replace(self.place, batches=goes_on.batches, samples=goes_on.samples)
        self.goes_on = None
        return left

    def goes_back(self) -> int:
        """The script goes on in the loop that it is in, where that is its place; the pass, -1 where it is not."""
        to, here = self.goes_on, self.place
        if to is None or (to.epoch, to.loop) != (here.epoch, here.loop):
            return -1
        self.goes_on, self.place = None, to
        drawn_from(self.now)
        return to.batches

    def passed(self, samples: int = 0) -> None:
        """A pass over a batch has ended.

        Args:
            samples: of all workers in it, where they are counted.
        """
        place = self.place
        self.place = replace(place, batches=place.batches + 1, samples=place.samples + samples)

    def ended(self) -> None:
        """A loop over batches has ended, or was left."""
        self.place = Position(self.place.epoch, self.place.loop + 1)


def sampler_of(batches: object) -> ElasticSampler | None:
    """The sampler that divides batches of all workers, where a loader has one."""
    sampler = getattr(batches, "batch_sampler", batches)
    return sampler if isinstance(sampler, ElasticSampler) else None


def _left(batches: Iterable[T], place: Position) -> Iterator[T]:
    """The batches from a place on, where the others are not even loaded if nothing is drawn for them elsewhere."""
    sampler = sampler_of(batches) if place.samples else None
    # Processes of a loader draw by themselves, as they did where a step has as many samples as before.
    if sampler is not None and (not getattr(batches, "num_workers", 0) or _is_changed(sampler, place)):
        sampler.seek(place.samples)
        return iter(batches)
    if isinstance(batches, Sequence):
        return (batches[index] for index in range(place.batches, len(batches)))
    left = iter(batches)
    for _ in range(place.batches):
        next(left, None)
    return left


def _is_changed(sampler: ElasticSampler, place: Position) -> bool:
    return place.batches * sampler.batch != place.samples
