"""The exchange through parameter servers: one stream to each, groups complete when all servers have answered."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from taihu.coordination.plan import Plan
from taihu.errors import ExchangeError, TaihuError
from taihu.job import Job
from taihu.wire.clock import Clock, SystemClock
from taihu.wire.identity import WorkerIdentity
from worker.exchange import ExchangeTotals, GradientExchange
from worker.server_link import Arenas, ServerLink

__all__ = ["ServerExchange"]


class ServerExchange(GradientExchange):
    """See `GradientExchange`; `start` comes before the first step."""

    def __init__(
        self,
        *,
        job: Job,
        plan: Plan,
        addresses: Sequence[str],
        identity: WorkerIdentity,
        arenas: Arenas,
        clock: Clock | None = None,
    ) -> None:
        self.groups = plan.groups
        self._timeout_s = job.exchange.timeout_s
        self._rank = identity.rank
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._failure: TaihuError | None = None
        self._missing = [0] * len(plan.groups)
        self._step = 0
        self._first_push_s = 0.0
        self._last_answer_s = 0.0
        self._links = [
            ServerLink(
                job=job,
                plan=plan,
                index=index,
                address=address,
                identity=identity,
                arenas=arenas,
                on_answer=self._answered,
                on_error=self.fail,
            )
            for index, address in enumerate(addresses)
        ]

    def start(self) -> None:
        """Worker 0 brings the initial parameters to the servers, the others fetch them; then open the streams.

        Raises:
            ModelError: this worker's model differs from the servers'.
            PeerUnreachableError: a server does not answer.
            TaihuError: what `fail` was told meanwhile.
        """
        try:
            for link in self._links:
                if self._rank == 0:
                    link.initialize()
                else:
                    link.fetch()
        except TaihuError:
            self._raise_failure()
            raise
        for link in self._links:
            link.open()

    def begin(self, step: int) -> None:
        """See `GradientExchange.begin`."""
        self._step = step
        self._first_push_s = 0.0
        with self._changed:
            for group in range(len(self.groups)):
                self._missing[group] = sum(link.frame_count(group) for link in self._links)
        for link in self._links:
            link.begin(step)

    def push(self, group: int) -> None:
        """See `GradientExchange.push`."""
        if not self._first_push_s:
            self._first_push_s = self._clock.now()
        for link in self._links:
            link.push(group)

    def wait(self, group: int) -> None:
        """See `GradientExchange.wait`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing[group] or self._failure, self._timeout_s)
            self._raise_failure()
            if self._missing[group]:
                raise ExchangeError(
                    f"group {group} of step {self._step}: {self._missing[group]} answers did not come within "
                    f"{self._timeout_s:g} s; another worker is slow or stuck, see `taihu status`, "
                    "or raise exchange.timeout_s"
                )

    def fail(self, error: BaseException) -> None:
        """See `GradientExchange.fail`."""
        with self._changed:
            if self._failure is None:
                self._failure = error if isinstance(error, TaihuError) else ExchangeError(str(error))
            self._changed.notify_all()
        for link in self._links:
            link.abandon()

    def totals(self) -> ExchangeTotals:
        """See `GradientExchange.totals`."""
        return ExchangeTotals(
            sum(link.sent_bytes for link in self._links), sum(link.received_bytes for link in self._links)
        )

    def last_exchange_seconds(self) -> float:
        """See `GradientExchange.last_exchange_seconds`."""
        return max(0.0, self._last_answer_s - self._first_push_s)

    def close(self) -> None:
        """See `GradientExchange.close`."""
        for link in self._links:
            link.close()

    def _answered(self, group: int) -> None:
        with self._changed:
            self._missing[group] -= 1
            if not self._missing[group]:
                self._last_answer_s = self._clock.now()
                self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
