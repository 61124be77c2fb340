"""Part files of all processes merged into one Chrome trace, on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from taihu.core.base.errors import RunError
from taihu.core.trace.parts import NS_PER_US, Event, TracePart, read_part, write_trace

_FLOW_CATEGORY: Final = "flow"


class _Slice(NamedTuple):
    """An event in its place in the viewer."""

    event: Event
    process: str
    pid: int
    tid: int


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
    parts: list[tuple[TracePart, str]] = []
    skipped: dict[str, str] = {}
    for path in paths:
        try:
            parts.append((read_part(path), str(path)))
        except OSError as error:
            skipped[path.name] = error.strerror or str(error)
        except (ValueError, KeyError, TypeError) as error:
            skipped[path.name] = f"not a whole trace part: {error}"
    if not parts:
        seen = "; ".join(f"{name}: {reason}" for name, reason in sorted(skipped.items())) or "no process wrote one"
        raise RunError(f"no trace: expected at least one trace part that can be read ({seen}); see the logs")
    parts.sort(key=lambda found: (found[0].sort_index, found[0].process, found[1]))
    trace = trace_of([part for part, _ in parts], skipped)
    write_trace(out, trace)
    return trace


def trace_of(parts: Sequence[TracePart], skipped: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """The trace of `parts` in their order, as `merge_parts` writes it; `skipped` says why others are left out."""
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


def _rows(events: Sequence[Event]) -> Iterator[tuple[str, list[Event]]]:
    """The rows of one process with their events, tracks in the order of their first event."""
    tracks: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.order):
        tracks.setdefault(event.track, []).append(event)
    for track, held in tracks.items():
        for number, lane in enumerate(_lanes(held), start=1):
            yield track if number == 1 else f"{track} ({number})", lane.events


class _Lane:
    """Events that nest, added in their order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._open_stops: list[int] = []

    def add(self, event: Event) -> bool:
        """Take the event unless it would end after one that began before it; returns whether it was taken."""
        while self._open_stops and self._open_stops[-1] <= event.start:
            self._open_stops.pop()
        if self._open_stops and event.stop > self._open_stops[-1]:
            return False
        self._open_stops.append(event.stop)
        self.events.append(event)
        return True


def _lanes(events: Iterable[Event]) -> list[_Lane]:
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
        "ts": (event.start - origin) / NS_PER_US,
        "dur": (event.stop - event.start) / NS_PER_US,
        "args": {name: value for name, value in args.items() if value is not None},
    }


def _arrows(slices: Iterable[_Slice], origin: int) -> list[dict[str, Any]]:
    """Records of all arrows; of several events of one name, process, peer, step and group the last to end counts."""
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
    begin = {"ph": "s", "pid": source.pid, "tid": source.tid, "ts": (source.event.start - origin) / NS_PER_US}
    end = {"ph": "f", "bp": "e", "pid": target.pid, "tid": target.tid, "ts": (instant - origin) / NS_PER_US}
    return [begin | common, end | common]
