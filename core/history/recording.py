"""Recording of what a process does, or not: one object that is handed down to whoever does something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.checkpoint.keepers import resumed_from
from taihu.core.compression.balance import Weighed
from taihu.core.history.digest import Digest, Values, bits_of
from taihu.core.history.records import Balance, Begin, Record, Update
from taihu.core.job import Job
from taihu.kernels.base.half import HalfKind, from_half

_NOTHING: Final = nullcontext()


class Recorder:
    """Hands records on; whoever has one to make asks `enabled` before. Any thread may call.

    Args:
        add: gets the records; None for nobody.
    """

    def __init__(self, add: Callable[[Record], None] | None) -> None:
        self.enabled = add is not None
        self._add = add

    @classmethod
    def off(cls) -> Recorder:
        """A recorder that records nothing."""
        return cls(None)

    def add(self, record: Record) -> None:
        """Hand a record on."""
        if self._add is not None:
            self._add(record)

    def updating(  # noqa: PLR0917 - an address, a range, what is updated by what
        self,
        step: int,
        group: int,
        bounds: NDArray[np.int64],
        parameters: Values,
        gradient: Callable[[], Digest],
        seen: Callable[[], Values] | None = None,
    ) -> AbstractContextManager[None]:
        """Record the update that the block makes of `parameters`, shape (n,), by `gradient`.

        Args:
            step: of the update.
            group: of the plan.
            bounds: shape (k, 2): the ranges of the arena that the parameters are of.
            parameters: as they lie in memory; changed by the block.
            gradient: makes the digest of the sum; called before the block.
            seen: makes the parameters as workers read them, behind the block, if they are others.
        """
        if not self.enabled:
            return _NOTHING
        return self._updating(step, group, bounds, parameters, gradient, seen)

    @contextmanager
    def _updating(  # noqa: PLR0917 - as above
        self,
        step: int,
        group: int,
        bounds: NDArray[np.int64],
        parameters: Values,
        gradient: Callable[[], Digest],
        seen: Callable[[], Values] | None,
    ) -> Iterator[None]:
        before, by = bits_of(parameters, bounds), gradient()
        yield
        after = bits_of(parameters, bounds)
        read = after if seen is None else bits_of(seen(), bounds)
        self.add(Update(step, group, int(bounds[0, 0]), len(parameters), by, before, after, read))


def as_fp32(values: NDArray[np.float32] | NDArray[np.uint16], kind: HalfKind | None) -> Values:
    """Values, or what codes of `kind` stand for, shape (n,)."""
    if values.dtype == np.float32:
        return values.view(np.float32)
    assert kind is not None  # noqa: S101
    decoded = np.empty(len(values), dtype=np.float32)
    from_half(np.ascontiguousarray(values, dtype=np.uint16), kind, decoded)
    return decoded


def balance_of(weighed: Weighed, bounds: NDArray[np.int64]) -> Balance:
    """The record of a balance of ranges of the arena; shape (k, 2)."""
    arrays = (weighed.before, weighed.owed, weighed.after, weighed.together)
    before, owed, after, together = (bits_of(values, bounds) for values in arrays)
    return Balance(before, owed, after, together, rounded=weighed.rounded)


@contextmanager
def recorded_history(
    job: Job, member: str, generation: int, say: Callable[[str], None] | None = None, *, agent: int = 0
) -> Iterator[Recorder]:
    """The recorder of a process's part in a generation: during the block, into the folder `run.history`.

    `say` is told of a file that cannot be written any more; by default, the log is. What an `agent` runs has a file
    for each agent, by its life: on a machine that was cut off a process may live on, and another one has its place.

    Raises:
        ConfigError: nothing can be written there.
        CheckpointError: the job goes on from a checkpoint that cannot be opened.
    """
    folder = job.history_folder
    if folder is None:
        yield Recorder.off()
        return
    from taihu.core.history.files import HistoryFile  # noqa: PLC0415 - what reads and writes JSON, and most runs do not

    begun = resumed_from(job)
    place = f"{member} of {agent}" if agent else member
    with HistoryFile(folder, place, *(() if say is None else (say,))) as file:
        file.add(
            Begin(
                member,
                generation,
                0 if begun is None else begun.step,
                servers=job.servers,
                workers=job.world.workers,
                zero=job.stage.key,
                precision=job.train.precision,
            )
        )
        yield Recorder(file.add)
