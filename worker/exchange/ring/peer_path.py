"""The path to other workers: what carries frames, by the plan, and which attempt they belong to."""

from __future__ import annotations

from typing_extensions import override

from taihu.allreduce.communicator import Communicator
from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.carriage import Carriage, carriers_of
from taihu.core.settings import Transport
from taihu.core.wire.frames.headers import At, ValueType
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.worker.exchange.base.route import ExchangeTotals, RouteEvents, RoutePath


class PeerPath(RoutePath):
    """A communicator, which is not closed here; `carriage` is the first plan's. `events` hear of its failure."""

    def __init__(
        self, communicator: Communicator, transport: Transport, carriage: Carriage, events: RouteEvents
    ) -> None:
        self._communicator = communicator
        self._transport = transport
        self._carriage, self._carriers = carriage, carriers_of(carriage)
        self.is_trial = carriage == "trial"
        """Whether steps take one carrier and another in turns; else all of a plan take the same."""
        self.attempt = 0
        """The attempt that operations belong to."""
        self._opened = False
        self._failed = events.failed

    @property
    @override
    def name(self) -> str:
        return self._communicator.path

    @override
    def listen(self) -> None:
        self._communicator.on_failure(self._failed)

    def open(
        self,
        shared: SharedBuffer | None,
        value_type: ValueType = ValueType.FP32,
        *,
        by_kernel: bool | None = None,
    ) -> None:
        """Find out whether all workers share memory, which are `shared` if so, and open what the plan needs.

        Where they do not, a kernel sums values of `value_type` if `by_kernel` is true for all; it is None for all
        where that is not asked.

        Raises:
            ConfigError: they do not, although the transport says so.
        """
        self._opened = True
        self._prepare()
        self._communicator.choose_path(self._transport, shared)
        is_connected = self._transport in ("auto", "tcp") and self._communicator.path != "same-host"
        if by_kernel is not None and is_connected:
            self._communicator.sum_by_kernel(value_type, is_possible=by_kernel)

    def adopt(self, plan: Plan) -> None:
        """Go on by what `plan` says of carrying frames."""
        self._carriage, self._carriers = plan.carriage, carriers_of(plan.carriage)
        self.is_trial = plan.carriage == "trial"
        if self._opened:
            self._prepare()

    def begin(self, at: At) -> None:
        """Operations that begin now belong to `at`; asked for where the attempt is another one, or in a trial."""
        if at.attempt > self.attempt:
            self._give_up_before(at.attempt)
        self._communicator.carry(self._carriers[at.step % 2])

    @override
    def totals(self) -> ExchangeTotals:
        return ExchangeTotals(self._communicator.sent_bytes, self._communicator.received_bytes)

    @override
    def cancel(self, at: At) -> None:
        self._give_up_before(at.attempt + 1)

    @override
    def fail(self, error: BaseException) -> None:
        self._communicator.fail(error)

    def close(self) -> None:
        """Hear of failures no more; whoever gave the communicator closes it."""
        self._communicator.forget_failure(self._failed)

    def _prepare(self) -> None:
        if self._carriage != "grpc":
            self._communicator.prepare("tcp", wait=self._carriage == "tcp")
        self._communicator.carry(self._carriers[0])

    def _give_up_before(self, attempt: int) -> None:
        self.attempt = attempt
        self._communicator.abort(attempt)
