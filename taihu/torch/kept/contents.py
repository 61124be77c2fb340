"""A script's objects and place as arrays: those that all workers have alike, and those of this one alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError
from taihu.torch.kept.keeping import Arrays
from taihu.torch.kept.loops import Loops, Position, generators
from taihu.torch.kept.tree import arrays_and_words, from_arrays_and_words

ALIKE: Final = "shared"
"""The names of arrays that all workers have alike begin so."""

OURS: Final = "taihu."
"""The names in an optimizer's state that are those of compression and of local steps begin so."""

_OWN: Final = "own"
_WORDS: Final = "/words"
_LEAST_WORDS: Final = 4096


@runtime_checkable
class Stateful(Protocol):
    """An object that PyTorch saves and loads by these two."""

    def state_dict(self) -> Any:
        """All that it needs to go on."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Go on from that."""


@runtime_checkable
class Owning(Protocol):
    """An optimizer in whose state a worker has a part of its own."""

    def own_state(self) -> dict[str, Any]:
        """That part; its names begin with `OURS`."""


class Counts(NamedTuple):
    """The numbers of a state.

    Attributes:
        step: the steps of the script.
        exchanged: those whose gradients were exchanged.
        workers: that trained.
    """

    step: int
    exchanged: int
    workers: int


class Contents:
    """The objects of a script and its place in its loops.

    Args:
        objects: by name.
        loops: of the script.
    """

    def __init__(self, objects: Mapping[str, Stateful], loops: Loops) -> None:
        self._objects = dict(objects)
        self._loops = loops
        self._capacity: dict[str, int] = {}

    def kept(self, counts: Counts, *, alike: bool) -> tuple[Arrays, Arrays]:
        """The arrays of this worker's own, its generators and the rest of compression, and those that all have alike.

        Args:
            counts: of the state.
            alike: whether the second ones are wanted; there are none else.
        """
        loops = self._loops
        own, shared = {}, {}
        for name, each in self._objects.items():
            if mine := _own_of(each):
                own[name] = mine
            if alike:
                shared[name] = _shared_of(each)
        tree = {"objects": own, "at_epoch": loops.at_epoch, "at_loop": loops.at_loop, "now": loops.draws_from}
        arrays = self._packed(tree, _OWN)
        if not alike:
            return arrays, {}
        return arrays, self._packed({**counts._asdict(), "place": asdict(loops.is_at), "objects": shared}, ALIKE)

    def load(self, alike: Arrays, own: Arrays, workers: int) -> Counts:
        """Go on from what was kept.

        Args:
            alike: what all workers had alike.
            own: what this worker had of its own; empty where that is lost.
            workers: that go on.

        Raises:
            CheckpointError: it is damaged, or of other objects.
        """
        shared = from_arrays_and_words(alike, _words(alike, ALIKE))
        mine = from_arrays_and_words(own, _words(own, _OWN)) if own else {}
        counts = Counts(*(int(shared[name]) for name in Counts._fields))
        mine = mine if counts.workers == workers else {}
        for name, each in self._objects.items():
            if name not in shared["objects"]:
                raise CheckpointError(f"state(): nothing is kept of {name}; give the objects that were given before")
            each.load_state_dict({**shared["objects"][name], **mine.get("objects", {}).get(name, {})})
        loops, now = self._loops, mine.get("now") or generators()
        loops.goes_on = Position(**shared["place"]).on_others(counts.workers, workers)
        loops.now = now
        loops.at_epoch, loops.at_loop = mine.get("at_epoch") or now, mine.get("at_loop") or now
        return counts

    def _packed(self, tree: Mapping[str, object], name: str) -> dict[str, NDArray[Any]]:
        """The arrays of a tree, its words among them, with room for longer ones."""
        arrays, text = arrays_and_words(tree, name)
        words = text.encode()
        if len(words) > self._capacity.get(name, 0):
            self._capacity[name] = max(_LEAST_WORDS, 2 * len(words))
        room = words.ljust(self._capacity[name])
        return {**arrays, f"{name}{_WORDS}": np.frombuffer(room, dtype=np.uint8)}


def objects_of(alike: Arrays) -> dict[str, Any]:
    """The states of all objects among arrays, by name; raises CheckpointError where these are damaged."""
    objects: dict[str, Any] = from_arrays_and_words(alike, _words(alike, ALIKE))["objects"]
    return objects


def _own_of(each: object) -> dict[str, Any]:
    """The part of an object's state that this worker has of its own, whoever has wrapped it, as Accelerate does."""
    while isinstance(each, torch.optim.Optimizer) and not isinstance(each, Owning):
        each = getattr(each, "optimizer", None)
    return each.own_state() if isinstance(each, Owning) else {}


def _shared_of(each: Stateful) -> Any:
    """The part of an object's state that all workers have alike."""
    kept = each.state_dict()
    if not isinstance(kept, Mapping) or not any(str(key).startswith(OURS) for key in kept):
        return kept
    return {key: kept[key] for key in kept if not str(key).startswith(OURS)}


def _words(arrays: Arrays, name: str) -> str:
    """The words of a tree among arrays.

    Raises:
        CheckpointError: there are none.
    """
    if (words := arrays.get(f"{name}{_WORDS}")) is None:
        raise CheckpointError("damaged state of a script: its words are missing")
    return words.tobytes().decode().rstrip()
