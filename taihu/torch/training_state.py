"""`taihu.torch.state`: what a script trains with, held and written behind its steps, and where it goes on."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError, ConfigError
from taihu.core.checkpoint.held_steps import Label
from taihu.core.checkpoint.places import Place, place_of
from taihu.core.checkpoint.reading import open_checkpoint
from taihu.core.checkpoint.run_memory import discard_named, have_named, name_memory, named_memory
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job.variables import variable_of
from taihu.core.settings import CheckpointSettings
from taihu.core.wire.base.clock import SystemClock
from taihu.torch.kept.keeping import Keeping
from taihu.torch.kept.loops import Loops, Position, generators
from taihu.torch.kept.moments import Moments
from taihu.torch.kept.tree import arrays_and_words, from_arrays_and_words
from taihu.torch.optimizer import OURS, DistributedOptimizer
from taihu.torch.world import World

__all__ = ["Stateful", "TrainingState"]

T = TypeVar("T")

# Launchers count the lives of a script that are over: `taihu run`, torchrun, and Slurm, which queues a job again.
_LIVES: Final = (variable_of("LIVES"), "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_SHARED: Final = "shared"
_OWN: Final = "own"
_WORDS: Final = "/words"
_LEAST_WORDS: Final = 4096
_LABELS: Final = 3


@runtime_checkable
class Stateful(Protocol):
    """An object that PyTorch saves and loads by these two."""

    def state_dict(self) -> Any:
        """All that it needs to go on."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Go on from that."""


class TrainingState:
    """Holds what a script trains with behind its steps, writes it now and then, and goes on from there.

    Worker 0 keeps what all workers have alike; each keeps what it alone has: the states of its generators, and what
    compression has held back.

    Args:
        world: the workers.
        settings: `[checkpoint]`.
        objects: by name.
    """

    def __init__(self, world: World, settings: CheckpointSettings, objects: Mapping[str, Stateful]) -> None:
        _check(world, objects)
        self._world = world
        self._settings = settings
        self._objects = dict(objects)
        self._clock = SystemClock()
        self._loops = Loops(self._passed)
        self.step = 0
        """The steps that have been made, in all lives of the run: passes in which an optimizer has stepped."""
        self._has_stepped = False
        self._watched = [each for each in map(_inner, objects.values()) if each is not None]
        for optimizer in self._watched:
            optimizer.register_step_post_hook(self._stepped)
        self._capacity: dict[str, int] = {}
        folder = None if settings.dir is None or settings.dir == Path("none") else place_of(settings.dir)
        if folder is None and world.rank == 0:
            structlog.get_logger().warning("the state is not kept: no checkpoint.dir names a folder for it")
        if not world.is_alone:
            world.meet()
        self._keeping = self._opened(folder)
        self._go_on()
        self._moments = Moments(self.step, every_s=settings.every_seconds, every_steps=settings.every_steps)
        self._since_s, self._since_step = self._clock.now(), self.step
        self._holds_s: list[float] = []
        world.at_end(self._close)
        world.keeps_state = True

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of `count` epochs, from the one in which the script goes on."""
        return self._loops.epochs(count)

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, from the one at which the script goes on; what it needs is kept behind each that has stepped.

        Behind each such pass of the loop all workers come here: they have as many batches.
        """
        return self._loops.batches(batches)

    def _opened(self, folder: Place | None) -> Keeping:
        """The places where this worker keeps state; worker 0 finds out whether those before are gone on from."""
        memory, is_first = None, self._world.rank == 0
        if is_first and folder is not None and not self._goes_on:
            _refuse_former(folder)
        if isinstance(folder, Path) and self._settings.in_memory:
            if is_first and not self._goes_on:
                discard_named(folder)
            if is_first:
                name_memory(folder)
            self._agree(0)  # worker 0 has named it
            memory = have_named(named_memory(folder))
        return Keeping(
            self._world.job.name,
            self._world.rank,
            self._world.size,
            folder=folder,
            memory=memory,
            keep=self._settings.keep,
        )

    @property
    def _goes_on(self) -> bool:
        """Whether the script goes on from what an earlier life has kept in its folder, or in memory."""
        counts = [os.environ.get(name, "0") for name in _LIVES]
        return self._settings.resumes_auto or any(count.isdecimal() and int(count) > 0 for count in counts)

    def _go_on(self) -> None:
        """Take over the newest state that all workers have, where the script goes on."""
        keeping, world = self._keeping, self._world
        wanted = self._goes_on
        held = _common([self._labels_of(root) for root in range(world.size)]) if wanted else []
        written = 0
        if wanted and world.rank == 0 and (newest := keeping.newest) is not None:
            written = newest.step
        written = self._agree(written)
        named = self._settings.resume
        if held and held[0].step >= written:
            self._take_over(keeping.read_held(held[0]), "memory")
        elif written:
            checkpoint = keeping.written_behind(written)
            self._take_over(keeping.read(checkpoint), str(checkpoint.folder))
        elif named is not None and not self._settings.resumes_auto:
            checkpoint = open_checkpoint(place_of(named))
            checkpoint.verify()
            self._take_over(keeping.read(checkpoint), str(checkpoint.folder))
        keeping.begin(self._agree(secrets.randbits(62) + 1))

    def _labels_of(self, root: int) -> list[Label]:
        """The steps that a worker holds, told to all."""
        told = torch.full((_LABELS, 2), -1, dtype=torch.int64)
        if root == self._world.rank:
            for index, label in enumerate(sorted(self._keeping.labels)[:_LABELS]):
                told[index] = torch.tensor(label)
        self._world.bring([told], root)
        return [Label(*each) for each in told.tolist() if each[1] >= 0]

    def _agree(self, number: int) -> int:
        """Worker 0's number."""
        told = torch.tensor([number])
        self._world.bring([told])
        return int(told.item())

    def _take_over(self, arrays: Mapping[str, NDArray[Any]], source: str) -> None:
        """Load what was kept: worker 0's of all that is alike, and what this worker alone has."""
        own = from_arrays_and_words(arrays, _words(arrays, _OWN)) if arrays else {}
        shared = self._brought(arrays)
        had = int(shared["workers"])
        self.step = int(shared["step"])
        self._world.goes_on(int(shared["exchanged"]))
        for name, each in self._objects.items():
            if name not in shared["objects"]:
                raise CheckpointError(f"state(): nothing is kept of {name}; give the objects that were given before")
            kept = shared["objects"][name]
            if had == self._world.size and name in own.get("objects", {}):
                kept = {**kept, **own["objects"][name]}
            each.load_state_dict(kept)
        place = Position(**shared["place"])
        if had != self._world.size:
            # As many samples have been seen by all workers together.
            place = Position(place.epoch, place.loop, place.batches * had // self._world.size)
            structlog.get_logger().warning(
                "other workers than before",
                before=had,
                now=self._world.size,
                lost="what compression had held back, and the place within a batch of all workers",
            )
        if self._world.rank == 0:
            structlog.get_logger().info("going on", step=self.step, out_of=source)
        now = own.get("now") or generators()
        self._loops.goes_on, self._loops.now = place, now
        self._loops.at_epoch, self._loops.at_loop = own.get("at_epoch") or now, own.get("at_loop") or now

    def _brought(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """The tree of all that workers have alike, as worker 0 has kept it."""
        own = {name: torch.from_numpy(array) for name, array in arrays.items() if name.startswith(_SHARED)}
        told = json.dumps([(name, str(each.dtype), list(each.shape)) for name, each in own.items()]).encode()
        words = torch.zeros(self._agree(len(told)), dtype=torch.uint8)
        if self._world.rank == 0:
            words = torch.frombuffer(bytearray(told), dtype=torch.uint8)
        self._world.bring([words])
        brought = {}
        for name, dtype, shape in json.loads(words.numpy().tobytes()):
            missing = torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            brought[name] = own.get(name, missing)
        self._world.bring(list(brought.values()))
        shared = {name: each.numpy() for name, each in brought.items()}
        tree: dict[str, Any] = from_arrays_and_words(shared, _words(shared, _SHARED))
        return tree

    def _passed(self) -> None:
        """A pass over a batch has ended: keep what the script needs, as far as it is due."""
        if self._watched and not self._has_stepped:
            return
        self._has_stepped = False
        self.step += 1
        step, moments = self.step, self._moments
        begin_s = self._clock.now()
        arrays = self._arrays() if moments.holds(step) or moments.writes(step) else {}
        if moments.holds(step):
            self._keeping.hold(step, arrays)
            self._world.flush()
            self._holds_s.append(self._clock.now() - begin_s)
        if moments.writes(step):
            self._keeping.write(step, arrays)
        if moments.agrees(step):
            self._agree_on_moments()

    def _agree_on_moments(self) -> None:
        """Have all workers hold and write behind the same steps, as worker 0 has measured."""
        now = self._clock.now()
        # The first ones make their files.
        hold_s = median(self._holds_s) if self._holds_s else 0.0
        step_s = (now - self._since_s - sum(self._holds_s)) / (self.step - self._since_step)
        hold_every, write_every = map(self._agree, self._moments.found(step_s, hold_s))
        self._moments.agreed(self.step, hold_every, write_every)
        self._since_s, self._since_step = self._clock.now(), self.step
        self._holds_s.clear()

    def _stepped(self, *_: object) -> None:
        self._has_stepped = True

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that this worker keeps: of all that is alike, if it is worker 0, and of what it alone has."""
        loops, alike, alone = self._loops, {}, {}
        for name, each in self._objects.items():
            if isinstance(each, DistributedOptimizer):
                kept = each.state_dict()
                alone[name] = {key: value for key, value in kept.items() if key.startswith(OURS)}
                alike[name] = {key: value for key, value in kept.items() if not key.startswith(OURS)}
            elif self._world.rank == 0:
                alike[name] = each.state_dict()
        own = {"objects": alone, "at_epoch": loops.at_epoch, "at_loop": loops.at_loop, "now": generators()}
        arrays = self._packed(own, _OWN)
        if self._world.rank == 0:
            place, workers = asdict(loops.place), self._world.size
            counts = {"step": self.step, "exchanged": self._world.exchanged, "workers": workers}
            shared = {**counts, "place": place, "objects": alike}
            arrays |= self._packed(shared, _SHARED)
        return arrays

    def _packed(self, tree: Mapping[str, object], name: str) -> dict[str, NDArray[Any]]:
        """The arrays of a tree, its words among them, with room for longer ones."""
        arrays, text = arrays_and_words(tree, name)
        words = text.encode()
        if len(words) > self._capacity.get(name, 0):
            self._capacity[name] = max(_LEAST_WORDS, 2 * len(words))
        room = words.ljust(self._capacity[name])
        return {**arrays, f"{name}{_WORDS}": np.frombuffer(room, dtype=np.uint8)}

    def _close(self, *, well: bool) -> None:
        """The script has ended: write its last state; what is held in memory is needed no more where all is well."""
        keeping, settings = self._keeping, self._settings
        if not well:
            keeping.settle()
            return
        keeping.write_last(self.step, self._arrays())
        if self._world.rank == 0 and isinstance(settings.dir, Path) and settings.dir != Path("none"):
            discard_named(settings.dir)


def _check(world: World, objects: Mapping[str, Stateful]) -> None:
    """Refuse what is not kept whole.

    Raises:
        ConfigError: says what.
    """
    if not objects:
        raise ConfigError("state(): expected what is to be kept, as state(model=model, optimizer=optimizer)")
    for name, each in objects.items():
        if not isinstance(each, Stateful):
            raise ConfigError(f"state(): {name} is of {type(each).__name__}, which has no state_dict(); leave it out")
        if isinstance(each, DistributedOptimizer) and each.updates_by_servers:
            raise ConfigError(
                f'state(): {name} has update="servers", and its state is theirs, which is not kept; give '
                'update="workers"'
            )
    if world.keeps_state:
        raise ConfigError("state(): there is one already; give it all objects")
    if world.spreads is not None:
        raise ConfigError("state(): layers that shard_linear has spread are not kept; leave shard_linear out")
    if world.job.compression.method.holds_back and not any(
        isinstance(each, DistributedOptimizer) for each in objects.values()
    ):
        raise ConfigError(
            "state(): compression holds gradients back, which the DistributedOptimizer has; give that as optimizer"
        )


def _inner(each: object) -> torch.optim.Optimizer | None:
    """The optimizer whose steps change parameters, whoever has wrapped it: we, or Accelerate's."""
    if not isinstance(each, torch.optim.Optimizer):
        return None
    return _inner(getattr(each, "optimizer", None)) or each


def _refuse_former(folder: Place) -> None:
    if CheckpointStore(folder).steps():
        raise ConfigError(
            f"{folder} has checkpoints of an earlier run: go on with checkpoint.resume = auto (taihu run --resume "
            "auto), or name another checkpoint.dir"
        )


def _words(arrays: Mapping[str, NDArray[Any]], name: str) -> str:
    """The words of a tree among arrays.

    Raises:
        CheckpointError: there are none.
    """
    if (words := arrays.get(f"{name}{_WORDS}")) is None:
        raise CheckpointError("damaged state of a script: its words are missing")
    return words.tobytes().decode().rstrip()


def _common(held: Iterable[Iterable[Label]]) -> list[Label]:
    """The steps that all hold, the newest first."""
    return sorted(frozenset.intersection(*map(frozenset, held)), key=attrgetter("step"), reverse=True)
