"""Words and arrays of one worker, told to all: which of them goes on from what is agreed on so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from taihu.core.job import Job


class Workers(Protocol):
    """The workers of a script, of which this process is one.

    Attributes:
        job: of the run.
        rank: of this one.
        size: their number.
    """

    job: Job
    rank: int
    size: int

    def bring(self, tensors: Sequence[torch.Tensor], root: int = 0) -> None:
        """Have the values of worker `root` in tensors that all workers have alike."""

    def goes_on(self, exchanged: int) -> None:
        """The script goes on behind so many exchanged steps of earlier lives."""


class Telling:
    """Brings to all workers what one of them has; all call alike.

    Args:
        world: the workers, who have met.
    """

    def __init__(self, world: Workers) -> None:
        self._world = world

    def number(self, number: int, root: int = 0) -> int:
        """The number of worker `root`."""
        told = torch.tensor([number])
        self._world.bring([told], root)
        return int(told.item())

    def words(self, own: object, root: int = 0) -> Any:
        """The words of worker `root`, all that JSON knows."""
        told = json.dumps(own).encode()
        words = torch.zeros(self.number(len(told), root), dtype=torch.uint8)
        if self._world.rank == root:
            words = torch.frombuffer(bytearray(told), dtype=torch.uint8)
        self._world.bring([words], root)
        return json.loads(words.numpy().tobytes())

    def of_all(self, own: object) -> list[Any]:
        """The words of each worker, by rank."""
        return [self.words(own, root) for root in range(self._world.size)]

    def arrays(self, own: Mapping[str, NDArray[Any]], root: int = 0) -> dict[str, NDArray[Any]]:
        """The arrays of worker `root`."""
        mine = {name: torch.from_numpy(array) for name, array in own.items()} if self._world.rank == root else {}
        told = self.words([(name, str(each.dtype), list(each.shape)) for name, each in mine.items()], root)
        brought = {}
        for name, dtype, shape in told:
            missing = torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            brought[name] = mine.get(name, missing)
        self._world.bring(list(brought.values()), root)
        return {name: each.numpy() for name, each in brought.items()}
