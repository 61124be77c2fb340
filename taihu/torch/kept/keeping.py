"""A script's state behind its steps: in memory of this host that outlives the process, and in checkpoints."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError, TaihuError
from taihu.core.base.words import one_line
from taihu.core.checkpoint.files import PartFile, write_part
from taihu.core.checkpoint.held_steps import HeldSteps, Label, held_in, read_held, read_run
from taihu.core.checkpoint.manifest import SCRIPT, Manifest
from taihu.core.checkpoint.part import Part, State
from taihu.core.checkpoint.places import Place, write_durably
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.process.memory.mapped_files import boot_id
from taihu.core.system.threads import Thread
from taihu.core.wire.base.clock import SystemClock
from taihu.torch.kept.offers import Held, Offer

Arrays = Mapping[str, NDArray[Any]]
_Form = list[tuple[str, tuple[int, ...]]]

_ALIKE: Final = "all by "
"""The first worker of each host holds all that workers have alike, under this name and its rank."""
_LOOK_S: Final = 0.05
_OTHERS_S: Final = 60.0


class Keeping:
    """Holds and writes what one worker has; one thread calls.

    Args:
        name: of the job.
        rank: of this worker.
        workers: their number.
        folder: of the checkpoints, which all workers see; None for none.
        memory: the folder in memory of this host, None for none.
        keep: so many checkpoints stay.
    """

    def __init__(
        self, name: str, rank: int, workers: int, *, folder: Place | None, memory: Path | None, keep: int
    ) -> None:
        self._member = _member(rank)
        self._rank, self._workers, self._keep = rank, workers, keep
        self._store = None if folder is None else CheckpointStore(folder)
        self._memory = memory
        self._run = Manifest(
            job=name,
            settings=SCRIPT,
            step=0,
            total_steps=0,
            servers=0,
            workers=workers,
            layers=[],
            groups=[],
            files={},
        )
        self._generation = 0
        self._held: dict[str, HeldSteps] = {}
        self._forms: dict[str, _Form] = {}
        self._writing: Thread | None = None
        self._clock = SystemClock()
        self.written = 0
        """The last step whose part has been begun to be written here."""

    def begin(self, generation: int) -> None:
        """Hold steps of this life of the run from now on."""
        self._generation = generation

    def offer(self) -> Offer:
        """All that lies in memory of this host, whoever has held it."""
        if self._memory is None or not self._memory.exists():
            return Offer(0)
        status = self._memory.stat()
        host = zlib.crc32(f"{boot_id()} {status.st_dev} {status.st_ino}".encode())
        found: dict[bool, set[Held]] = {True: set(), False: set()}
        for member, labels in held_in(self._memory).items():
            for label in labels:
                with suppress(CheckpointError, ValueError):
                    workers = read_run(self._memory, member, label).workers
                    found[member.startswith(_ALIKE)].add(Held(int(member.split()[-1]), label, workers))
        return Offer(host, frozenset(found[True]), frozenset(found[False]))

    def read_alike(self, writer: int, label: Label) -> dict[str, NDArray[Any]]:
        """The arrays of what all workers have alike, held in memory of this host; raises CheckpointError if not."""
        return self._read(f"{_ALIKE}{writer}", label)

    def read_own(self, writer: int, label: Label) -> dict[str, NDArray[Any]]:
        """The arrays that a worker had of its own, held in memory of this host; raises CheckpointError if not."""
        return self._read(_member(writer), label)

    def _read(self, member: str, label: Label) -> dict[str, NDArray[Any]]:
        if self._memory is None:
            raise CheckpointError(f"{self._member} holds no steps")
        return dict(read_held(self._memory, member, label).own)

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None where none was completed.

        Raises:
            CheckpointError: all are damaged, or are not a script's.
        """
        if self._store is None or not self._store.steps():
            return None
        return self._store.newest()[0]

    def written_behind(self, step: int) -> Checkpoint:
        """The checkpoint of a step; raises CheckpointError where there is none, or its manifest is damaged."""
        if self._store is None:
            raise CheckpointError("the run has no checkpoint.dir")
        return self._store.open(step)

    def read(self, checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
        """This worker's arrays in a checkpoint; none where there were fewer workers.

        Raises:
            CheckpointError: it is damaged, or not a script's.
        """
        if checkpoint.manifest.settings != SCRIPT:
            raise CheckpointError(f"{checkpoint.folder} is no checkpoint of a script; name another checkpoint.dir")
        return checkpoint.own_of(self._member)

    def hold(self, step: int, own: Arrays, alike: Arrays) -> None:
        """Hold what this worker has behind `step` of its own, and what all have alike if that is given."""
        if self._memory is None:
            return
        self._hold(self._memory, self._member, step, own)
        if alike:
            self._hold(self._memory, f"{_ALIKE}{self._rank}", step, alike)

    def _hold(self, memory: Path, member: str, step: int, arrays: Arrays) -> None:
        state, form = State(own=arrays), [(name, array.shape) for name, array in arrays.items()]
        held = self._held.get(member)
        if held is None:
            held = self._held[member] = HeldSteps(memory, member, self._generation, self._run)
        elif form != self._forms[member]:
            held.adopt(self._run)
        self._forms[member] = form
        held.begin(step, lambda: state)
        held.put(step, state)
        held.end(step)

    def write(self, step: int, arrays: Arrays) -> None:
        """Begin to write what this worker has behind `step`; all workers wait until the last one is written."""
        self.settle()
        if self._store is None:
            return
        state = State(own=arrays).copy()
        self.written = step
        self._writing = Thread(target=self._write, args=(self._store, step, state), name="checkpoint")
        self._writing.start()

    def write_last(self, step: int, arrays: Arrays) -> None:
        """Write what this worker has in the end, if that is not written yet; returns when all have."""
        self.settle()
        if self._store is not None and self.written < step:
            self._write(self._store, step, State(own=arrays))

    def settle(self) -> None:
        """Return when nothing is being written any more."""
        if self._writing is not None:
            self._writing.join()

    def _write(self, store: CheckpointStore, step: int, state: State) -> None:
        try:
            if self._rank == 0:
                store.withdraw(step)
            file = write_part(store.folder_of(step), Part(self._member, step, state))
            if self._rank:
                with write_durably(self._told_in(store, step, self._rank)) as told:
                    told.write(json.dumps(file._asdict()).encode())
                return
            files = {self._member: file}
            for rank in range(1, self._workers):
                files[_member(rank)] = self._told_by(store, step, rank)
            run = self._run.model_copy(update={"step": step, "total_steps": step, "files": Manifest.entries(files)})
            store.commit(run)
            store.prune(self._keep, step)
        except (OSError, TaihuError) as error:
            structlog.get_logger().warning("no checkpoint", step=step, reason=one_line(str(error)))

    def _told_by(self, store: CheckpointStore, step: int, rank: int) -> PartFile:
        """The file that another worker has written; raises CheckpointError where it does not come."""
        place = self._told_in(store, step, rank)
        until_s = self._clock.now() + _OTHERS_S
        while self._clock.now() < until_s:
            with suppress(OSError, ValueError, TypeError):
                return PartFile(**json.loads(place.read_bytes()))
            self._clock.sleep(_LOOK_S)
        raise CheckpointError(f"worker {rank} has not written its part within {_OTHERS_S:g} s")

    def _told_in(self, store: CheckpointStore, step: int, rank: int) -> Place:
        """The file in which a worker says what it has written in this life of the run."""
        return store.folder_of(step) / f"worker-{rank}-{self._generation}.json"


def _member(rank: int) -> str:
    return f"worker {rank}"
