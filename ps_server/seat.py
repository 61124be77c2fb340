"""The place of a server that joins a run: it says that it is there, and hears where it takes part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog

from taihu.core.base.errors import FinishedError, PeerUnreachableError, TaihuError
from taihu.core.checkpoint.keepers import ended_run
from taihu.core.coordination.client.asking import answer_of, is_refusal, keep_asking
from taihu.core.coordination.client.client import coordinator_address, remote_control
from taihu.core.coordination.control.asks import Seat
from taihu.core.coordination.control.control import Control
from taihu.core.coordination.control.remote import RemoteControl
from taihu.core.coordination.coordinator.service import new_incarnation
from taihu.core.coordination.membership.members import MemberId, Role, RunState, error_of
from taihu.core.job import Job
from taihu.core.process.background import in_background
from taihu.core.process.entry import InterruptedRunError
from taihu.core.system.clocks import monotonic, sleep
from taihu.core.system.threads import Event

_LOOK_S: Final = 0.03


class MovedError(TaihuError):
    """This server has another place in the run, or none."""


@dataclass(frozen=True)
class _Heard:
    """The last words of the coordinator, at a time of the monotonic clock; `error` where it said nothing since."""

    index: int = 0
    state: RunState = RunState.WAITING
    reason: str = ""
    error: TaihuError | None = None
    at_s: float = 0.0


class OwnSeat:
    """Asks in a thread of its own, within `kept`; the thread that serves calls everything else.

    Args:
        job: of the run.
        name: of this server, for people.

    Attributes:
        life: by which the coordinator knows this process.
    """

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self._name = name
        self._address = coordinator_address(job)
        self.life = new_incarnation()
        self._index = 0
        error = PeerUnreachableError(f"coordinator at {self._address}: no answer yet")
        self._heard = _Heard(error=error, at_s=monotonic())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Say during the block that this server is there."""
        with in_background(self._work, "seat"):
            yield

    def await_place(self) -> int:
        """Wait for a place in the run: its index.

        Raises:
            FinishedError: the run has finished.
            InterruptedRunError: it was stopped.
            RunError: it has failed.
            StaleError, ConfigError: it is another one, or takes no servers.
            PeerUnreachableError: nobody answers for `cluster.connect_timeout_s`.
        """
        self._index = 0
        has_said = False
        while not (index := self._look(self._heard, monotonic())):
            if self._heard.error is None and not has_said:
                structlog.get_logger().info("waiting for a place in the run", name=self._name)
                has_said = True
            sleep(_LOOK_S)
        self._index = index
        return index

    def check(self) -> None:
        """Raise MovedError where this server has another place now."""
        heard = self._heard
        if heard.error is None and heard.index != self._index:
            raise MovedError(f"server {self._index} is {f'server {heard.index}' if heard.index else 'none'} now")

    def _look(self, heard: _Heard, now: float) -> int:
        """The place that was heard of, 0 for none yet; raises as `await_place` does."""
        if heard.error is not None:
            if ended_run(self._job) is not None:
                raise FinishedError("the run has finished, nothing is left to do")
            if is_refusal(heard.error) or now - heard.at_s > self._job.cluster.connect_timeout_s:
                raise heard.error
            return 0
        if heard.state is RunState.FINISHED:
            raise FinishedError("the run has finished, nothing is left to do")
        if heard.state is RunState.STOPPED:
            raise InterruptedRunError(f"the run has stopped: {heard.reason}")
        if heard.state is RunState.FAILED and (error := error_of(heard.state, heard.reason)) is not None:
            raise error
        return heard.index

    def _work(self, over: Event) -> None:
        keep_asking(over, self._connect, self._ask, self._fail)

    def _connect(self) -> RemoteControl:
        # The first place behind those with ranks: whoever joins has a certificate for it.
        return remote_control(self._address, self._job, MemberId(Role.SERVER, self._index or self._job.servers))

    def _ask(self, control: Control) -> None:
        ask = Seat(self._job.name, self.life, self._name, self._job.digest, self._index)
        told = answer_of(control, ask, self._job.patience.answer_s)
        self._heard = _Heard(told.index, told.state, told.reason, at_s=monotonic())

    def _fail(self, error: TaihuError) -> None:
        self._heard = replace(self._heard, error=error)
