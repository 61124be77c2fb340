"""An agent's side of the coordinator: it says which workers it runs, and hears which it is to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taihu.core.base.errors import PeerUnreachableError, TaihuError
from taihu.core.coordination.client.asking import answer_of, keep_asking
from taihu.core.coordination.client.client import coordinator_address, remote_control
from taihu.core.coordination.control.asks import Attend
from taihu.core.coordination.control.control import Control
from taihu.core.coordination.control.remote import RemoteControl
from taihu.core.coordination.membership.members import MemberId, Role, RunState
from taihu.core.job import Job
from taihu.core.system.clocks import monotonic
from taihu.core.system.threads import Event


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
        keep_asking(over, self._control, self._hear, self._fail)

    @property
    def is_refused(self) -> bool:
        """Whether asking again is of no use: the run is another one, or takes no agents."""
        error = self.answer.error
        return error is not None and not isinstance(error, PeerUnreachableError)

    def _hear(self, control: Control) -> None:
        self.answer = self._ask(control)

    def _fail(self, error: TaihuError) -> None:
        known = self.answer
        self.answer = Answer(known.ranks, known.state, known.reason, known.awaited, error, known.heard_s)

    def _control(self) -> RemoteControl:
        # Worker 0 may have a machine of its own, whose certificate no other one has.
        return remote_control(self._address, self._job, MemberId(Role.WORKER, self._job.world.workers - 1))

    def _ask(self, control: Control) -> Answer:
        name, life, digest = self._job.name, self._life, self._job.digest
        ask = Attend(name, life, self._name, digest, tuple(self.runs), self.leaves)
        told = answer_of(control, ask, self._job.patience.answer_s)
        return Answer(told.ranks, told.state, told.reason, told.awaited, None, monotonic())
