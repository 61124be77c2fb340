"""A member's signs of life to the coordinator, on a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from taihu.core.base.errors import (
    StaleError,
    TaihuError,
)
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.membership.members import Progress, RunState
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.job import Job
from taihu.core.job.signs_of_life import seconds_between_signs
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.system.threads import make_thread
from taihu.core.wire.base.clock import SystemClock

_HASTY_S: Final = 0.05


class HeartbeatThread:
    """Sends heartbeats until closed, and calls `on_end(state, reason)` once when the run is over.

    A coordinator that cannot be reached for `lost_after_s` ends the run as FAILED; where the run recovers, one that
    does not know this member any more has begun again. `stop` is told what is known of a
    stop; as soon as one is expected, heartbeats follow each other quickly.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        job: Job,
        progress: Callable[[], Progress],
        on_end: Callable[[RunState, str], None],
        *,
        stop: StopNotice | None = None,
    ) -> None:
        self._client = client
        self._stop = stop or StopNotice()
        self._interval_s = seconds_between_signs(job)
        self._lost_after_s = job.cluster.lost_after_s
        self._progress = progress
        self._on_end = on_end
        self._clock = SystemClock()
        self._closing = False
        self._wait_s = self._interval_s
        # Unlike an event, a queue may be put to from a signal handler.
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._thread = make_thread("heartbeat", self._run)

    def __enter__(self) -> Self:
        self._stop.on_wish = lambda: self._wakes.put(None)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._wakes.put(None)
        self._thread.join(timeout=self._lost_after_s)

    def hurry(self) -> None:
        """Send the next heartbeat at once, and others soon after it: the run may have ended, or is about to end."""
        self._wakes.put(None)

    def _closed(self) -> bool:
        """Wait until the next heartbeat is due; whether there is none."""
        try:
            self._wakes.get(timeout=min(_HASTY_S, self._interval_s) if self._stop.expected else self._wait_s)
            self._wait_s = min(_HASTY_S, self._interval_s)
        except Empty:
            self._wait_s = min(2 * self._wait_s, self._interval_s)
        return self._closing

    def _run(self) -> None:
        last_answer_s = self._clock.now()
        while not self._closed():
            try:
                state, reason = self._client.heartbeat(self._progress(), self._stop)
            except TaihuError as error:
                if (end := self._client.heard_end()) is not None:
                    self._on_end(*end)
                    return
                if isinstance(error, StaleError) and self._client.recovers:
                    self._on_end(RunState.RECOVERING, f"the {self._client.peer} has begun again")
                    return
                if self._clock.now() - last_answer_s > self._lost_after_s:
                    state = RunState.RECOVERING if self._client.recovers else RunState.FAILED
                    self._on_end(state, f"lost the {self._client.peer}: {error}")
                    return
                continue
            last_answer_s = self._clock.now()
            if state.is_final:
                self._on_end(state, reason)
                return
