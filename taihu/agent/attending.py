"""An agent's side of the coordinator: it says which workers it runs, and hears which it is to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import grpc

from taihu.core.base.errors import ConfigError, PeerUnreachableError, StaleError, TaihuError
from taihu.core.coordination.client import coordinator_address
from taihu.core.coordination.membership.members import RunState
from taihu.core.coordination.membership.messages import plain, state_from_message
from taihu.core.job import Job
from taihu.core.job.security import security_of
from taihu.core.security.identity import member_name
from taihu.core.system.clocks import monotonic
from taihu.core.system.threads import Event
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.serving.channel import open_channel
from taihu.protos import coordinator_pb2 as pb
from taihu.protos.coordinator_pb2_grpc import CoordinatorServiceStub

__all__ = ["Answer", "Attending"]

_PAUSE_S: Final = 0.05


@dataclass(frozen=True)
class Answer:
    """The coordinator's last words to an agent.

    Attributes:
        ranks: of the workers that it is to run.
        state: of the run.
        reason: of its end.
        awaited: what the run waits for before it begins; "" where it has.
        error: of the last call; None where that was answered, and what stands above is as it is now.
        heard_s: the time at which it was, of the monotonic clock.
    """

    ranks: tuple[int, ...] = ()
    state: RunState = RunState.WAITING
    reason: str = ""
    awaited: str = ""
    error: TaihuError | None = None
    heard_s: float = 0.0


class Attending:
    """Asks again and again, in a thread of its own, `work`; the thread that runs workers reads and writes the rest.

    Attributes:
        runs: the ranks of the workers that this agent runs.
        leaves: whether it wants to run none, and to end.
        answer: what it has heard last.
    """

    def __init__(self, job: Job, life: int, name: str) -> None:
        self._job = job
        self._life = life
        self._name = name
        self._address = coordinator_address(job)
        self._peer = f"coordinator at {self._address}"
        self.runs: Iterable[int] = ()
        self.leaves = False
        self.answer = Answer(error=PeerUnreachableError(f"{self._peer}: no answer yet"), heard_s=monotonic())

    def work(self, over: Event) -> None:
        """Ask until it is `over`."""
        while not over.is_set():
            try:
                with self._channel() as channel:
                    stub = CoordinatorServiceStub(channel)
                    while not over.wait(_PAUSE_S):
                        self.answer = self._ask(stub)
            except TaihuError as error:
                known = self.answer
                self.answer = Answer(known.ranks, known.state, known.reason, known.awaited, error, known.heard_s)

    @property
    def is_refused(self) -> bool:
        """Whether asking again is of no use: the run is another one, or takes no agents."""
        error = self.answer.error
        return error is not None and not isinstance(error, PeerUnreachableError)

    def _channel(self) -> grpc.Channel:
        host = member_name("server" if self._job.servers else "worker", 0)
        # Worker 0 may have a machine of its own, whose certificate no other one has.
        own = security_of(self._job, "worker", self._job.world.workers - 1)
        return open_channel(self._address, self._job.patience, own, host)

    def _ask(self, stub: CoordinatorServiceStub) -> Answer:
        request = pb.AttendRequest(
            job=self._job.name,
            agent=self._life,
            name=self._name,
            runs=tuple(self.runs),
            leaves=self.leaves,
            settings_digest=self._job.digest,
        )
        try:
            response = plain(stub.Attend(request, timeout=self._job.patience.answer_s))
        except grpc.RpcError as rpc:
            error = error_from_rpc(rpc, self._peer)
            # Between two generations nobody answers for a moment, and calls that were held break off.
            if isinstance(error, StaleError | ConfigError) and not isinstance(error, PeerUnreachableError):
                raise error from None
            raise PeerUnreachableError(str(error)) from None
        state = state_from_message(response.state)
        return Answer(tuple(response.ranks), state, response.reason, response.awaited, None, monotonic())
