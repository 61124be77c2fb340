"""Recording of what the threads of one process do, with little overhead."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from taihu.core.base.errors import ConfigError
from taihu.core.system.clocks import monotonic
from taihu.core.system.threads import Lock
from taihu.core.trace.parts import NS_PER_S, Event, TracePart, write_part


class Tracer:
    """Records what the threads of one process do; `add` and `span` may be called by any thread.

    An event belongs to a track ("compute", "push server 0"), which becomes a row of the process in the viewer. Of an
    event with a step, only those from `first_step` to `last_step` are recorded, both included; events without a step
    always are. Nothing is formatted and no lock is taken until `write_part`. An event takes about 200 bytes.

    Args:
        clock: monotonic seconds; the one that also measures the times given to `add`.
        limit: events that are kept; those after them are counted, not kept. 0 records nothing at next to no cost.
        first_step: first step that is recorded.
        last_step: last step that is recorded; None for no end.

    Raises:
        ConfigError: `last_step` comes before `first_step`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        *,
        limit: int = 1_000_000,
        first_step: int = 0,
        last_step: int | None = None,
    ) -> None:
        if last_step is not None and last_step < first_step:
            raise ConfigError(f"trace of steps {first_step} to {last_step}: expected the first not after the last")
        self.enabled = limit > 0
        self._clock = clock
        self._limit = limit
        self._first_step = first_step
        self._last_step = math.inf if last_step is None else last_step
        self._events: list[tuple[str, str, float, float, int | None, int | None, int | None]] = []
        self._dropped = 0
        self._dropping = Lock()

    @classmethod
    def off(cls) -> Tracer:
        """A tracer that records nothing."""
        return cls(limit=0)

    def add(
        self,
        track: str,
        name: str,
        start_s: float,
        stop_s: float,
        *,
        step: int | None = None,
        group: int | None = None,
        peer: int | None = None,
    ) -> None:
        """Record that `name` went on from `start_s` to `stop_s`, by this tracer's clock.

        Never raises: an event that ends before it starts, or whose times are not finite, counts as dropped.

        Args:
            track: row of the viewer; events of one track may overlap.
            name: what was done; "push" and "pull" of a worker and "update" of a server are joined by arrows.
            start_s: seconds.
            stop_s: seconds.
            step: training step.
            group: group of layers.
            peer: index of the server at the other end of a worker's event, rank of the worker for a server's.
        """
        if not self.enabled or (step is not None and not self._first_step <= step <= self._last_step):
            return
        if len(self._events) < self._limit and -math.inf < start_s <= stop_s < math.inf:
            self._events.append((track, name, start_s, stop_s, step, group, peer))
            return
        with self._dropping:
            self._dropped += 1

    def span(
        self,
        name: str,
        *,
        track: str,
        step: int | None = None,
        group: int | None = None,
        peer: int | None = None,
    ) -> AbstractContextManager[None]:
        """`add` for the body of a `with` statement, also when the body raises."""
        if not self.enabled:
            return nullcontext()
        return _Span(self, track, name, step, group, peer)

    def now(self) -> float:
        """Seconds by this tracer's clock."""
        return self._clock()

    def write_part(
        self, path: Path, process: str, sort_index: int, *, offset_s: float = 0.0, error_s: float = 0.0
    ) -> None:
        """Write what was recorded so far, for `merge_parts`.

        Args:
            path: file to write.
            process: name of this process: "worker 0", "server 1".
            sort_index: processes with a lower one come first.
            offset_s: the coordinator's clock minus this tracer's clock, in seconds.
            error_s: bound of the error of `offset_s`; infinite when unknown.

        Raises:
            ConfigError: the file cannot be written.
        """
        write_part(path, self.part(process, sort_index, offset_s=offset_s, error_s=error_s))

    def part(self, process: str, sort_index: int, *, offset_s: float = 0.0, error_s: float = 0.0) -> TracePart:
        """The part that `write_part` writes."""
        # Threads that pass the check of the limit together may each append once more.
        recorded = self._events[:]
        kept = recorded[: self._limit]
        events = tuple(
            Event(track, name, _nanoseconds(start_s + offset_s), _nanoseconds(stop_s + offset_s), *args)
            for track, name, start_s, stop_s, *args in kept
        )
        dropped = self._dropped + len(recorded) - len(kept)
        known_error_s = error_s if math.isfinite(error_s) else None
        return TracePart(sort_index, process, dropped, known_error_s, events)


@dataclass(slots=True)
class _Span:
    tracer: Tracer
    track: str
    name: str
    step: int | None
    group: int | None
    peer: int | None
    start_s: float = 0.0

    def __enter__(self) -> None:
        self.start_s = self.tracer.now()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_s = self.tracer.now()
        self.tracer.add(self.track, self.name, self.start_s, stop_s, step=self.step, group=self.group, peer=self.peer)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NS_PER_S)
