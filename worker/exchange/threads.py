"""The ground of a worker's exchange: threads that wait for each other, and the failure that ends all waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from taihu.core.base.errors import ExchangeError, TaihuError
from taihu.core.process.background import TaskThread
from taihu.core.system.threads import Condition
from taihu.worker.exchange.ground import Waits
from taihu.worker.exchange.step_protocol import StepProtocol


class Threads:
    """The lock of an exchange, its own thread, and whoever waits for it.

    The lock is that of the protocol, of the times and the failure, and of memory that is given back.

    Args:
        protocol: says in words what is waited for.
        timeout_s: the longest wait; None for any.
        fail: called with what goes wrong in the own thread.

    Attributes:
        failure: the error that has ended the exchange.
        own: the own thread.
    """

    def __init__(
        self, protocol: StepProtocol, timeout_s: float | None, fail: Callable[[BaseException], None]
    ) -> None:
        self.failure: TaihuError | None = None
        self.own = TaskThread("exchange", fail)
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._changed = Condition()
        self.lock: AbstractContextManager[object] = self._changed
        self.changed, self.later = self._changed.notify_all, self.own.put
        self._is_settled = True
        # The group that the training thread waits for; -1 for none.
        self._awaited = -1

    @property
    def awaited(self) -> str:
        """The cause of the training thread's wait, in words; "" where it does not wait."""
        with self._changed:
            return "" if self._awaited < 0 else self._protocol.awaited(self._awaited)

    def carry_out(self, waits: Waits) -> None:
        """Return when nothing is left to wait for.

        Raises:
            ExchangeError, MemberLostError, RunError: the step cannot be completed; the message says why.
        """
        try:
            for is_there, group in waits:
                with self._changed:
                    if self.failure is not None or not is_there():
                        self._block(is_there, group)
        except BaseException:
            # What is measured, or told, ends now.
            waits.close()
            raise

    def _block(self, is_there: Callable[[], bool], group: int) -> None:
        """Return when a wait is over; called under the lock."""
        self._awaited = group
        try:
            came = self._changed.wait_for(lambda: self.failure or is_there(), self._timeout_s)
        finally:
            self._awaited = -1
        if self.failure is not None:
            raise self.failure
        if not came:
            raise ExchangeError(
                f"{self._protocol.awaited(group)} did not come within {self._timeout_s:g} s; another worker is "
                "slow or stuck, see `taihu status`, or raise exchange.timeout_s"
            )

    def end(self, error: BaseException) -> TaihuError | None:
        """Make every present and later wait raise `error`; returns what they raise, or None if all have ended."""
        with self._changed:
            if self.failure is not None:
                return None
            self.failure = error if isinstance(error, TaihuError) else ExchangeError(str(error) or repr(error))
            self._protocol.lost("one of its members")
            self.changed()
            return self.failure

    def settle(self) -> None:
        """Return when what is `behind` a step has been done, or raise the failure."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure or self._is_settled)
            if self.failure is not None and not self._is_settled:
                raise self.failure

    def behind(self, task: Callable[[], None]) -> None:
        """Carry `task` out on the own thread, until which `settle` waits; called under the lock."""
        self._is_settled = False
        self.own.put(partial(self._behind, task))

    def _behind(self, task: Callable[[], None]) -> None:
        task()
        with self._changed:
            self._is_settled = True
            self._changed.notify_all()
