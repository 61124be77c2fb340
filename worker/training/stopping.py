"""A worker's part in a run that is asked to stop: it ends after the step that all agree on, and worker 0 saves."""

from __future__ import annotations

from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.membership.stopping import StopNotice


class EvaluationAbandonedError(Exception):
    """An evaluation was given up: it is not worth waiting for any more."""


class LastStep:
    """The last step of this worker, of `total`; asked between two steps, when all of the one before is pushed.

    Workers that stand `apart`, at several steps, end a stopped run each where it stands.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        notice: StopNotice,
        total: int,
        timeout_s: float | None,
        *,
        apart: bool = False,
    ) -> None:
        self.notice = notice
        self._apart = apart
        self._client = client
        self._total = total
        self._timeout_s = timeout_s

    def follows(self, step: int) -> bool:
        """Whether a step follows `step`. Where the run is to stop, worker 0 waits here until all know the last one.

        Raises:
            RunError: the run failed meanwhile.
        """
        if self._client.member.rank == 0 and self.notice.must_fix(step, self._total):
            self.notice.last_step = self._client.fix_last_step(step, self._timeout_s)
        if self._apart and self.is_early:
            return False
        return step < self.notice.last_of(self._total)

    def is_last(self, step: int) -> bool:
        """Whether `step`, whose gradients are pushed, is the last one."""
        return step == (self._total if self._apart else self.notice.last_of(self._total))

    @property
    def is_early(self) -> bool:
        """Whether the run ends before its last step."""
        return self.notice.last_of(self._total) < self._total
