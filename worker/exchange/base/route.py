"""The way that values take between workers, and what it tells: the seam between an exchange and the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import NOTHING, Elements, State
from taihu.core.compression import GroupCompressor, Selection
from taihu.core.coordination.plans.plan import Plan
from taihu.core.wire.frames.headers import At


@dataclass(frozen=True)
class ExchangeTotals:
    """Bytes that have crossed the network so far, headers included."""

    sent_bytes: int
    received_bytes: int


class Held(NamedTuple):
    """Elements whose parameters a worker updates, and their optimizer state.

    The arrays of optimizer state are live, so that they may be written before the first step. Where the elements are
    `replicated`, all workers hold the same.
    """

    elements: Elements = NOTHING
    replicated: bool = False


class Updated(NamedTuple):
    """One part of a group has been summed and updated, and is where it belongs.

    `completed_s` is the instant of the complete sum in this worker's seconds, if another than now.
    """

    group: int
    at: At
    sent_bytes: int = 0
    received_bytes: int = 0
    completed_s: float | None = None
    skipped: bool = False


class Arrived(NamedTuple):
    """One part of the parameters that were fetched in `attempt` is where it belongs; the bytes are the part's."""

    group: int
    attempt: int
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class RouteEvents:
    """Events of a route, told by any thread.

    `applied(at)`: updates by the sums of all groups, which `apply` asked for, are where they belong.
    `later(at, task)` carries `task` out on the exchange's own thread, unless `at` has been given up by then.
    `failed(error)`: nothing comes any more.
    """

    updated: Callable[[Updated], None]
    arrived: Callable[[Arrived], None]
    applied: Callable[[At], None]
    later: Callable[[At, Callable[[], None]], None]
    failed: Callable[[BaseException], None]


class RoutePath(Protocol):
    """The path of a route's values: what has crossed it, and its end. Any thread may call `fail`."""

    @property
    def name(self) -> str:
        """`same-host`, `tcp` or `grpc`, or several of them; `none` of a worker alone."""

    def listen(self) -> None:
        """Tell `RouteEvents.failed` of a failure from now on, also of one that was before."""

    def totals(self) -> ExchangeTotals:
        """Bytes so far."""

    def cancel(self, at: At) -> None:
        """Forget what is under way of `at`; when this returns, nothing of it touches memory any more."""

    def fail(self, error: BaseException) -> None:
        """Cut what is under way, and tell others why where nobody else does."""

    def close(self) -> None:
        """End in good order; nothing is under way."""


class Carrier(Protocol):
    """The part of a route that actions need; see `Route` for threads."""

    def parts(self, group: int) -> int:
        """The number of parts of a group that are told of, for each push and fetch."""

    def begin(self, at: At) -> None:
        """Begin a step: what is sent from now on belongs to `at`."""

    def send(self, group: int, *, loss_scale: float, skipped: bool) -> int:
        """Send the group's gradients; returns the bytes that this takes, as far as they are known."""

    def apply(self, at: At, loss_scale: float) -> None:
        """Update by the sums of all groups, clipped together, if none was updated on its way; `applied` follows."""

    def fetch(self, group: int, step: int) -> None:
        """Fetch the group's parameters as they are after `step`."""


class Route(Carrier, Protocol):
    """Sends and fetches, and knows nothing of the state of a step.

    One thread calls all of these but `fetch`, which any thread may call. Nothing but `start`, `meet`, `agree`,
    `agree_on_skipping`, and of its path `cancel` and `close`, waits for others.
    """

    path: RoutePath
    """The path that values take; it is closed with the exchange."""

    shares_sums: int
    """The number of workers whose gradients are added up in what travels, so that each may be so much smaller."""

    def start(self) -> None:
        """Bring worker 0's parameters to all, and open what is needed.

        Raises:
            ConfigError: no memory is shared, although `exchange.transport` says so.
            TaihuError: a peer does not answer, or has another model.
        """

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; nothing is under way."""

    def tell(self, rates: Sequence[float]) -> None:
        """Tell those that update by a script's optimizer the learning rates of the step that has begun.

        There is one for each parameter group, or none at all where those of other workers hold.
        """

    def send_selected(self, group: int, selection: Selection, compressor: GroupCompressor) -> int:
        """Send what a compressor selected, which is valid until this returns."""

    def held(self) -> Held:
        """Parameters and optimizer state that this worker updates, as they are between two steps."""

    def hold(self, held: HeldSteps, make_state: Callable[[], State]) -> bool:
        """Have `held` take what this worker alone updates, see `Exchange`, before anybody else gets it.

        Returns:
            False where there is no such thing.
        """

    def keep(self, step: int, *, until_durable: bool) -> None:
        """Have those that update for the workers keep what they hold after `step`; worker 0 alone calls this.

        What they hold does not change before this worker goes on. Returns when they have copied it or, where no step
        follows, when it is on disk.
        """

    def meet(self, *, at_end: bool, fetches: bool) -> bool:
        """Wait until all workers have come so far, see `Exchange.meet`; where all are at one step they have."""
        return True

    @property
    def ended_without(self) -> int:
        """The last step that is known to have ended for all parameters, with this worker or without it.

        A part may be further: whoever went on from there would leave out steps of the others.
        """
        return 0

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Replace `flags`, shape (n,), by those of worker 0, where all have to read parameters together."""

    def agree_on_skipping(self, *, overflowed: bool) -> bool:
        """Whether a gradient of any worker does not fit; all workers call this together."""
