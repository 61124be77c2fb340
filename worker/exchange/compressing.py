"""A thread that compresses what was pushed, group by group, while backward goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from taihu.compression import UnitReport
from taihu.errors import RunError, TaihuError
from taihu.trace import Tracer
from taihu.wire.clock import Clock
from worker.exchange.group_compressor import GroupCompressor, Selection
from worker.exchange.times import GroupTimes

__all__ = ["Compressing"]

Push = tuple[int, int, GroupTimes]


class Compressing:
    """Compresses groups in the order of `put`, from `start` to `close`.

    Args:
        compressor: used by this thread only, while anything is under way.
        send: called with the group and what was selected of it, which is valid until `send` returns.
        fail: called once with what went wrong.
        on_compressed: called with what became of each unit.
        clock: of the times that are filled in.
        tracer: gets an entry for each group.
    """

    def __init__(
        self,
        compressor: GroupCompressor,
        *,
        send: Callable[[int, Selection], None],
        fail: Callable[[BaseException], None],
        on_compressed: Callable[[UnitReport], None],
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self.compressor = compressor
        self._send = send
        self._fail = fail
        self._on_compressed = on_compressed
        self._clock = clock
        self._tracer = tracer
        self._queue: SimpleQueue[Push | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compress", daemon=True)

    def start(self) -> None:
        """Begin with what is put."""
        self._thread.start()

    def put(self, group: int, step: int, times: GroupTimes) -> None:
        """Compress a group of step `step`, whose gradients are in the arena, and fill in its times."""
        self._queue.put((group, step, times))

    def close(self) -> None:
        """End when everything has been compressed."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        step = 0
        try:
            while (push := self._queue.get()) is not None:
                step = push[1]
                self._compress(*push)
        except TaihuError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(RunError(f"internal error while compressing at step {step}: {error!r}"))
            raise

    def _compress(self, group: int, step: int, times: GroupTimes) -> None:
        start = self._clock.now()
        selection = self.compressor.compress(group, step)
        self._send(group, selection)
        times.submitted_s = self._clock.now()
        times.compress_s = times.submitted_s - start
        self._tracer.add("compress", "compress", start, times.submitted_s, step=step, group=group)
        for report in selection.reports:
            times.refreshed |= report.refreshed
            times.selected += report.selected
            self._on_compressed(report)
