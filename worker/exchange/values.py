"""The values of groups in a worker's arenas: narrowed, selected, widened, given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from taihu.core.chaos.points import Chaos, Point
from taihu.core.compression import GroupCompressor, Outcome
from taihu.core.compression.scheduled_rates import ScheduledRates
from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.groups import group_bounds
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.frames.headers import At
from taihu.kernels.base.half import LARGEST
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import Route
from taihu.worker.exchange.threads import Threads
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.memory.arenas import Arenas


class ArenaValues:
    """Carries out what touches the values of a worker's groups; nothing is decided here.

    One thread at a time touches the same group. See `Exchange` for the arguments; what takes long goes to the own
    thread of `threads`.
    """

    def __init__(  # noqa: PLR0917 - one of each
        self,
        plan: Plan,
        arenas: Arenas,
        route: Route,
        threads: Threads,
        recording: Recording,
        compressor: GroupCompressor | None,
        scheduled: ScheduledRates | None,
        on_compressed: Callable[[Outcome], None] | None,
        clock: Clock,
        tracer: Tracer,
        chaos: Chaos | None,
    ) -> None:
        self._arenas, self._route, self._threads, self._recording = arenas, route, threads, recording
        self._compressor, self._scheduled, self._on_compressed = compressor, scheduled, on_compressed
        self._clock, self._tracer, self._chaos = clock, tracer, chaos
        self.narrows, self.selects = arenas.half is not None, compressor is not None
        self.read: Callable[[int, int], None] | None = recording.read if recording.enabled else None
        watched = recording.enabled or chaos is not None
        self.pushing: Callable[[int, At], None] | None = self._pushing if watched else None
        self.ended: Callable[[int], None] | None = None
        # Values that are added up in 16 bits must be so much smaller than what they can hold.
        self._largest = LARGEST[arenas.half.kind] / route.shares_sums if arenas.half is not None else 0.0
        # Of the step that has begun.
        self._layer_rates: NDArray[np.float64] | None = None
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """Go on by a plan."""
        self._bounds: Sequence[tuple[int, int]] = group_bounds(plan.layout, plan.groups)
        self._recording.adopt(plan)

    def begin(self, at: At, rates: Sequence[float] | None, layer_rates: NDArray[np.float64] | None) -> None:
        """A step has begun, whose rates are told, or followed by what is held back."""
        self._layer_rates = self._scheduled.of(at.step) if layer_rates is None and self._scheduled else layer_rates
        if rates is not None:
            self._route.tell(rates)

    def narrow(self, group: int) -> bool:
        """Make gradients what is sent."""
        half, pages = self._arenas.half, self._arenas.gradient_pages
        if half is None or pages is None:
            return True
        start, stop = self._bounds[group]
        fits = half.narrow(start, self._arenas.gradients[start:stop], self._largest)
        pages.release(start, stop)
        return fits

    def select(self, group: int, at: At, times: GroupTimes) -> bool:
        """Have the group compressed on the own thread."""
        if (compressor := self._compressor) is None:
            return False
        self._threads.later(partial(self._compress, compressor, group, at, times, self._layer_rates))
        return True

    def _pushing(self, group: int, at: At) -> None:
        if self._chaos is not None:
            self._chaos.passes(Point.PUSH, at.step)
        if self._recording.enabled:
            self._recording.pushed(group, at)

    def _compress(
        self, compressor: GroupCompressor, group: int, at: At, times: GroupTimes, rates: NDArray[np.float64] | None
    ) -> None:
        start = self._clock.now()
        if self._recording.enabled:
            selection = self._recording.compress(compressor, group, at, rates)
        else:
            selection = compressor.compress(group, at.step, rates=rates)
        times.compressed(selection)
        # All that others send may be here before this thread goes on: the step has ended then.
        times.packed(start, self._clock.now())
        if self._chaos is not None:
            self._chaos.passes(Point.PUSH, at.step)
        times.sent(self._route.send_selected(group, selection, compressor))
        times.packed(start, self._clock.now())
        if self._tracer.enabled:
            self._tracer.add("compress", "compress", start, times.submitted_s, step=at.step, group=group)
        if self._on_compressed is not None:
            self._on_compressed(selection.outcome)

    def agree(self, at: At, told: Callable[[bool], None], *, overflowed: bool) -> None:
        """Agree with all workers."""
        skipped = self._route.agree_on_skipping(overflowed=overflowed)
        if skipped and self._recording.enabled:
            self._recording.skipped(at)
        told(skipped)

    def cancel(self, at: At) -> None:
        """Drain the own thread, and the way."""
        self._threads.own.drain()
        self._route.path.cancel(at)

    def widen(self, group: int, done: Callable[[], None]) -> None:
        """Widen what has come."""
        if self._arenas.half is not None:
            start, stop = self._bounds[group]
            self._arenas.half.widen(start, self._arenas.parameters[start:stop])
        done()

    def drop(self, group: int) -> None:
        """Give parameters back."""
        if self._arenas.parameter_pages is not None:
            self._arenas.parameter_pages.release(*self._bounds[group])

    def drop_all(self) -> None:
        """Give all parameters back."""
        if self._arenas.parameter_pages is not None and self._bounds:
            self._arenas.parameter_pages.release(0, self._bounds[-1][1])

    def release(self, group: int) -> None:
        """Give gradients back."""
        start, stop = self._bounds[group]
        if self._arenas.half is not None:
            self._arenas.half.release_gradients(start, stop)
        elif self._arenas.gradient_pages is not None:
            self._arenas.gradient_pages.release(start, stop)
