"""Parts of checkpoints written in the background: the run goes on, whatever the disk does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import structlog

from taihu.core.base.errors import AWAY, StaleError, TaihuError
from taihu.core.base.words import one_line
from taihu.core.chaos.points import Chaos, NoChaos
from taihu.core.checkpoint.files import PartFile, write_part
from taihu.core.checkpoint.keepers import checkpoint_folder
from taihu.core.checkpoint.part import Part
from taihu.core.checkpoint.places import Place
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job
from taihu.core.system.threads import Condition, make_thread
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.base.retry import backoff_seconds

Stored = Callable[[int, PartFile], None]
LeftOut = Callable[[int, str], None]


@contextmanager
def maybe_writing(
    job: Job,
    stored: Stored,
    left_out: LeftOut,
    chaos: Chaos | None = None,
    has_to_end: Callable[[], bool] = lambda: False,
) -> Iterator[PartWriter | None]:
    """A writer during the block, see `PartWriter`; None where the job keeps no checkpoints."""
    folder = checkpoint_folder(job)
    if folder is None:
        yield None
        return
    # A coordinator that is lost is noticed within half of that; what a cut connection had on its way takes longer.
    told_within_s = 2.0 * job.cluster.lost_after_s
    with PartWriter(folder, stored, left_out, chaos, told_within_s=told_within_s, has_to_end=has_to_end) as writer:
        yield writer


class PartWriter:
    """Writes one process's parts into `folder`, one at a time, on a thread of its own; a context manager.

    A part that comes while the one before is being written is left out, as is one that cannot be written: its
    checkpoint does not count then, and the run goes on. At the end what is being written is waited for. Once `stored`
    raises StaleError nothing is written any more: another process has this one's place, and its files count.

    Args:
        folder: of the run's checkpoints.
        stored: called with the step and the file when a part is durable, by the thread that writes.
        left_out: called with the step of a part that is left out, and why.
        chaos: is asked at each point.
        told_within_s: seconds for which `stored` is called again where it was not answered: a connection that breaks
            is no reason to leave a part out. It has to bear that it is told of a part twice.
        has_to_end: whether nobody has been heard of for so long that who waits for this writer has to go on. Called
            by the thread that writes.
    """

    def __init__(
        self,
        folder: Place,
        stored: Stored,
        left_out: LeftOut = lambda *_: None,
        chaos: Chaos | None = None,
        *,
        told_within_s: float = 0.0,
        has_to_end: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = CheckpointStore(folder)
        self._stored = stored
        self._left_out = left_out
        self._chaos = chaos or NoChaos()
        self._told_within_s = told_within_s
        self._has_to_end = has_to_end
        self._clock = SystemClock()
        self._changed = Condition()
        self._next: Part | None = None
        self._is_busy = self._is_closed = self._has_failed = self._is_stale = False
        self._log = structlog.get_logger()
        self._thread = make_thread("checkpoints", self._write_all)

    def write(self, step: int, copy: Callable[[], Part]) -> None:
        """Take a part of `step` by `copy`, whose arrays nobody else changes, and begin to write it."""
        if self._is_busy:
            self._say(step, "the one before is still being written")
            return
        part = copy()
        with self._changed:
            is_over = self._is_closed or self._is_stale
            if not is_over:
                self._next, self._is_busy = part, True
                self._changed.notify_all()
        if is_over:  # a call that was under way when this generation ended: nobody writes it, or hears of it
            self._log.info("checkpoint left out", step=step, reason="this process takes no part any more")

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Wait before the block until nothing is being written, and after it until what it began is stored."""
        self._wait()
        yield
        self._wait()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed, self._has_failed = True, kind is not None
            self._changed.notify_all()
        self._thread.join()

    def _write_all(self) -> None:
        while (part := self._await_next()) is not None:
            try:
                self._tell(part.step, write_part(self._store.folder_of(part.step), part, self._chaos))
            except (OSError, TaihuError) as error:
                self._is_stale = isinstance(error, StaleError)
                self._say(part.step, str(error))
            del part
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()

    def _tell(self, step: int, file: PartFile) -> None:
        """Tell of a part, until somebody has heard it, or nobody will."""
        until_s, pauses = self._clock.now() + self._told_within_s, backoff_seconds()
        while True:
            try:
                self._stored(step, file)
            except AWAY:
                is_over = self._has_to_end() or self._clock.now() >= until_s
                if is_over or self._fails_within(next(pauses)):
                    raise
            else:
                return

    def _fails_within(self, seconds: float) -> bool:
        """Wait so long; whether what this writer belongs to fails meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_failed, seconds)

    def _await_next(self) -> Part | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._is_closed)
            part, self._next = self._next, None
            return part

    def _say(self, step: int, why: str) -> None:
        self._log.warning("checkpoint left out", step=step, reason=why)
        if not self._has_to_end():
            with suppress(TaihuError):  # nobody is left who would hear it
                self._left_out(step, one_line(why))
