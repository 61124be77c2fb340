"""What every process did when: recorded with little overhead, merged into one Chrome trace on one clock."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from taihu.errors import ConfigError, RunError

__all__ = ["Tracer", "busy_seconds", "merge_parts", "overlap_seconds"]

_NS_PER_S = 10**9
_NS_PER_US = 10**3
_FORMAT = "taihu trace part 1"
_FLOW_CATEGORY = "flow"


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
        clock: Callable[[], float] = time.monotonic,
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
        self._dropping = threading.Lock()

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
        # Threads that pass the check of the limit together may each append once more.
        recorded = self._events[:]
        kept = recorded[: self._limit]
        part = {
            "format": _FORMAT,
            "process": process,
            "sort_index": sort_index,
            "dropped": self._dropped + len(recorded) - len(kept),
            "clock_error_s": error_s if math.isfinite(error_s) else None,
            "events": [
                (track, name, _nanoseconds(start_s + offset_s), _nanoseconds(stop_s + offset_s), *args)
                for track, name, start_s, stop_s, *args in kept
            ],
        }
        _write(path, part)


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


class _Event(NamedTuple):
    """One row of a part file; times in nanoseconds of the coordinator's clock."""

    track: str
    name: str
    start: int
    stop: int
    step: int | None
    group: int | None
    peer: int | None

    @property
    def order(self) -> tuple[int, int]:
        """Earlier first; of those that start together the longer one, which then encloses the other."""
        return self.start, -self.stop


class _Slice(NamedTuple):
    """An event in its place in the viewer."""

    event: _Event
    process: str
    pid: int
    tid: int


class _Part(NamedTuple):
    sort_index: int
    process: str
    file: str
    dropped: int
    clock_error_s: float | None
    events: tuple[_Event, ...]


def merge_parts(paths: Iterable[Path], out: Path) -> dict[str, Any]:
    """Write the parts as one trace file for https://ui.perfetto.dev or chrome://tracing, and return its content.

    Times count from the earliest event. Events of one track that overlap without one enclosing the other are spread
    over rows "TRACK", "TRACK (2)", ...; the category of an event is its track. Arrows lead from a worker's "push" to
    the "update" of the same step and group on process "server PEER", and from there to the worker's "pull".

    A part that is missing or damaged is left out, so that a run that failed still shows what is there;
    `otherData.skipped` names it with the reason, and `otherData.processes` tells what each process dropped.

    Args:
        paths: what `Tracer.write_part` wrote, in any order; the trace does not depend on it.
        out: file to write.

    Raises:
        RunError: no part can be read.
        ConfigError: `out` cannot be written.
    """
    parts: list[_Part] = []
    skipped: dict[str, str] = {}
    for path in paths:
        try:
            parts.append(_read_part(path))
        except OSError as error:
            skipped[path.name] = error.strerror or str(error)
        except (ValueError, KeyError, TypeError) as error:
            skipped[path.name] = f"not a whole trace part: {error}"
    if not parts:
        seen = "; ".join(f"{name}: {reason}" for name, reason in sorted(skipped.items())) or "no process wrote one"
        raise RunError(f"no trace: expected at least one trace part that can be read ({seen}); see the logs")
    trace = _trace(sorted(parts, key=lambda part: (part.sort_index, part.process, part.file)), skipped)
    _write(out, trace)
    return trace


def busy_seconds(trace: Mapping[str, Any], process: str, track: str) -> float:
    """How long at least one event of the track went on; tracks are named as in `overlap_seconds`."""
    return _covered(_intervals(trace, process, track)) / _NS_PER_S


def overlap_seconds(trace: Mapping[str, Any], process: str, track_a: str, track_b: str) -> float:
    """How long events of both tracks of a process went on at the same time.

    Args:
        trace: what `merge_parts` returned or wrote.
        process: for example "worker 0".
        track_a: a track, or a pattern such as "push server *" that stands for all tracks it matches.
        track_b: another one. What a trace does not hold takes 0 seconds.
    """
    a, b = _intervals(trace, process, track_a), _intervals(trace, process, track_b)
    return (_covered(a) + _covered(b) - _covered(a + b)) / _NS_PER_S


def _read_part(path: Path) -> _Part:
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"expected the format {_FORMAT!r}")
    return _Part(
        content["sort_index"],
        content["process"],
        str(path),
        content["dropped"],
        content["clock_error_s"],
        tuple(_Event(*row) for row in content["events"]),
    )


def _trace(parts: Sequence[_Part], skipped: Mapping[str, str]) -> dict[str, Any]:
    metadata: list[dict[str, Any]] = []
    slices: list[_Slice] = []
    # Some viewers take thread ids for global and a thread id that equals a process id for its main thread.
    tids = count(len(parts) + 1)
    for pid, part in enumerate(parts, start=1):
        metadata.append(_metadata(pid, 0, "process_name", name=part.process))
        metadata.append(_metadata(pid, 0, "process_sort_index", sort_index=pid))
        for row, events in _rows(part.events):
            tid = next(tids)
            metadata.append(_metadata(pid, tid, "thread_name", name=row))
            metadata.append(_metadata(pid, tid, "thread_sort_index", sort_index=tid))
            slices += [_Slice(event, part.process, pid, tid) for event in events]
    slices.sort(key=lambda place: place.event.order)
    origin = slices[0].event.start if slices else 0
    timed = [_slice_record(place, origin) for place in slices]
    timed += _arrows(slices, origin)
    # Viewers bind an arrow to the slice that is open when its end is read: slices come first. The sort is stable.
    timed.sort(key=lambda record: (record["ts"], "Xsf".index(record["ph"])))
    return {
        "traceEvents": metadata + timed,
        "displayTimeUnit": "ms",
        "otherData": {
            "processes": [
                {"pid": pid, "process": part.process, "dropped": part.dropped, "clock_error_s": part.clock_error_s}
                for pid, part in enumerate(parts, start=1)
            ],
            "skipped": dict(sorted(skipped.items())),
        },
    }


def _rows(events: Sequence[_Event]) -> Iterator[tuple[str, list[_Event]]]:
    """The rows of one process with their events, tracks in the order of their first event."""
    tracks: dict[str, list[_Event]] = {}
    for event in sorted(events, key=lambda event: event.order):
        tracks.setdefault(event.track, []).append(event)
    for track, held in tracks.items():
        for number, lane in enumerate(_lanes(held), start=1):
            yield track if number == 1 else f"{track} ({number})", lane.events


class _Lane:
    """Events that nest, added in their order."""

    def __init__(self) -> None:
        self.events: list[_Event] = []
        self._open_stops: list[int] = []

    def add(self, event: _Event) -> bool:
        """Take the event unless it would end after one that began before it; returns whether it was taken."""
        while self._open_stops and self._open_stops[-1] <= event.start:
            self._open_stops.pop()
        if self._open_stops and event.stop > self._open_stops[-1]:
            return False
        self._open_stops.append(event.stop)
        self.events.append(event)
        return True


def _lanes(events: Iterable[_Event]) -> list[_Lane]:
    """Put each of the events, given in their order, into the first lane that takes it."""
    lanes: list[_Lane] = []
    for event in events:
        if not any(lane.add(event) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].add(event)
    return lanes


def _metadata(pid: int, tid: int, kind: str, **args: int | str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _slice_record(place: _Slice, origin: int) -> dict[str, Any]:
    event = place.event
    args = {"step": event.step, "group": event.group, "peer": event.peer}
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.track,
        "pid": place.pid,
        "tid": place.tid,
        "ts": (event.start - origin) / _NS_PER_US,
        "dur": (event.stop - event.start) / _NS_PER_US,
        "args": {name: value for name, value in args.items() if value is not None},
    }


def _arrows(slices: Iterable[_Slice], origin: int) -> list[dict[str, Any]]:
    """Of several events of one name, process, peer, step and group the last to end is joined: the whole is there."""
    updates: dict[tuple[Any, ...], _Slice] = {}
    exchanges: dict[tuple[Any, ...], _Slice] = {}
    for place in sorted(slices, key=lambda place: place.event.stop):
        event = place.event
        if event.name == "update":
            updates[place.process, event.step, event.group] = place
        elif event.name in {"push", "pull"}:
            exchanges[event.name, place.pid, event.peer, event.step, event.group] = place
    records: list[dict[str, Any]] = []
    for place in exchanges.values():
        event = place.event
        update = updates.get((f"server {event.peer}", event.step, event.group))
        if update is not None:
            ends = (place, update) if event.name == "push" else (update, place)
            records += _arrow(len(records) + 1, *ends, origin)
    return records


def _arrow(identity: int, source: _Slice, target: _Slice, origin: int) -> list[dict[str, Any]]:
    """Two records; none when the target ended before the source began, which clocks that disagree can show."""
    instant = max(source.event.start, target.event.start)
    if instant >= target.event.stop and instant > target.event.start:
        return []
    common = {"name": f"{source.event.name} to {target.event.name}", "cat": _FLOW_CATEGORY, "id": identity}
    begin = {"ph": "s", "pid": source.pid, "tid": source.tid, "ts": (source.event.start - origin) / _NS_PER_US}
    end = {"ph": "f", "bp": "e", "pid": target.pid, "tid": target.tid, "ts": (instant - origin) / _NS_PER_US}
    return [begin | common, end | common]


def _intervals(trace: Mapping[str, Any], process: str, track: str) -> list[tuple[int, int]]:
    """Start and stop of the events of a track, in nanoseconds."""
    pids = {entry["pid"] for entry in trace["otherData"]["processes"] if entry["process"] == process}
    found = []
    for record in trace["traceEvents"]:
        if record["ph"] == "X" and record["pid"] in pids and fnmatchcase(record["cat"], track):
            start = round(record["ts"] * _NS_PER_US)
            found.append((start, start + round(record["dur"] * _NS_PER_US)))
    return found


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union."""
    covered = 0
    reached = -math.inf
    for start, stop in sorted(intervals):
        if stop > reached:
            covered += int(stop - max(start, reached))
            reached = stop
    return covered


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NS_PER_S)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, separators=(",", ":")))
    except OSError as error:
        raise ConfigError(f"cannot write trace {path}: {error.strerror}") from None
