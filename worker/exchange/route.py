"""The way that values take between workers, and what it tells: the seam between an exchange and the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.coordination.plan import Plan
from taihu.wire.headers import At
from worker.exchange.group_compressor import GroupCompressor, Selection

__all__ = ["ExchangeTotals", "Route", "RouteEvents"]


@dataclass(frozen=True)
class ExchangeTotals:
    """Bytes that have crossed the network so far, headers included."""

    sent_bytes: int
    received_bytes: int


class RouteEvents(Protocol):
    """Events of a route, told by any thread."""

    def updated(
        self,
        group: int,
        at: At,
        *,
        sent_bytes: int = 0,
        received_bytes: int = 0,
        completed_s: float | None = None,
        skipped: bool = False,
    ) -> None:
        """One part of a group has been summed and updated, and is where it belongs.

        `completed_s` is the instant of the complete sum in seconds of this worker's clock, if another than now.
        """

    def applied(self, at: At) -> None:
        """Updates by the sums of all groups, which `apply` asked for, are where they belong."""

    def later(self, at: At, task: Callable[[], None]) -> None:
        """Carry out `task` on the exchange's own thread, unless `at` has been given up by then."""

    def arrived(self, group: int, attempt: int, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """One part of the parameters that were fetched in `attempt` is where it belongs."""

    def failed(self, error: BaseException) -> None:
        """The route has failed: nothing comes any more."""


class Route(Protocol):
    """Sends, fetches, adopts and closes, and knows nothing of the state of a step.

    One thread calls all of these but `fetch` and `fail`, which any thread may call. Nothing but `start`, `agree`,
    `agree_on_skipping`, `cancel` and `close` waits for others.
    """

    asks_early: bool
    """Whether parts of a group that is being summed may be fetched, and come as soon as they have been updated."""

    agrees: bool
    """Whether workers agree on skipping a step before they push."""

    shares_sums: int
    """The number of workers whose gradients are added up in what travels, so that each may be so much smaller."""

    @property
    def path(self) -> str:
        """The way of values: `same-host`, `tcp` or `grpc`, or several of them; `none` of a worker alone."""

    def start(self) -> None:
        """Bring worker 0's parameters to all, and open what is needed.

        Raises:
            ConfigError: no memory is shared, although `exchange.transport` says so.
            TaihuError: a peer does not answer, or has another model.
        """

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; nothing is under way."""

    def parts(self, group: int) -> int:
        """The number of parts of a group that are told of, for each push and fetch."""

    def begin(self, at: At) -> None:
        """Begin a step: what is sent from now on belongs to `at`."""

    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """Send the group's gradients; returns the bytes that this takes, as far as they are known."""

    def apply(self, at: At, loss_scale: float) -> None:
        """Update by the sums of all groups, clipped together, if none was updated on its way; `applied` follows."""

    def send_selected(self, group: int, selection: Selection, compressor: GroupCompressor) -> int:
        """Send what a compressor selected, which is valid until this returns."""

    def fetch(self, group: int, step: int) -> None:
        """Fetch the group's parameters as they are after `step`."""

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Replace `flags`, shape (n,), by those of worker 0, where all have to read parameters together."""

    def agree_on_skipping(self, *, overflowed: bool) -> bool:
        """Whether a gradient of any worker does not fit; all workers call this together."""

    def cancel(self, at: At) -> None:
        """Forget what is under way of `at`; when this returns, nothing of it touches memory any more."""

    def fail(self, error: BaseException) -> None:
        """Cut what is under way, and tell others why where nobody else does."""

    def totals(self) -> ExchangeTotals:
        """Bytes so far."""

    def close(self) -> None:
        """End in good order; nothing is under way."""
