"""One step of a trace as a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from types import MappingProxyType
from typing import Any, Final

from taihu.report.charts import Colour, Span, Timeline, Track
from taihu.report.values import items, number, text

_US: Final = 1e-6
_MOST_TRACKS: Final = 32
_MOST_SPANS: Final = 1500
_TRACKS: Final = ("compute", "modelled", "compress", "push", "pull", "fetch", "update", "collect")
_COLOURS: Final[Mapping[str, Colour]] = MappingProxyType(
    {
        "forward": "blue",
        "backward": "gold",
        "wait": "grey",
        "compress": "purple",
        "push": "teal",
        "pull": "orange",
        "fetch": "orange",
        "update": "red",
        "collect": "grey",
    }
)


@dataclass(frozen=True)
class _Event:
    process: str
    track: str
    name: str
    start: float
    stop: float
    step: float | None
    group: float | None


def traced_step(trace: Mapping[str, Any]) -> tuple[str, Timeline, str] | None:
    """Title, timeline and note of the step of a trace that took the median time; None where it shows no step.

    The step is that of the first worker, from one forward to the next; all that went on meanwhile is shown.
    """
    events = _events(trace)
    steps = _steps(events)
    if not steps:
        return None
    lasting = sorted(steps, key=lambda step: step[2] - step[1])
    # The first and the last step begin and end with the run; of two the first one waits for nothing before it.
    inner = [step for step in lasting if step not in {steps[0], steps[-1]}] or steps[-1:]
    number_, start, stop = next(
        step for step in inner if step[2] - step[1] == median_low([each[2] - each[1] for each in inner])
    )
    tracks = _tracks([event for event in events if event.start < stop and event.stop > start], start, stop)
    shown, left_out = _most_telling(tracks)
    note = (
        f"Step {number_:.0f}, which took the median time of the {len(steps)} recorded ones: from one forward of the "
        "first worker to the next."
    )
    if left_out:
        note += f" {left_out} tracks more are in the trace itself, which ui.perfetto.dev shows."
    return "Timeline of a step", Timeline(shown, stop - start), note


def _events(trace: Mapping[str, Any]) -> list[_Event]:
    records = [record for record in items(trace, "traceEvents") if isinstance(record, Mapping)]
    names = {
        number(record, "pid"): text(record, "args", "name")
        for record in records
        if record.get("name") == "process_name"
    }
    found = []
    for record in records:
        start, lasting = number(record, "ts"), number(record, "dur")
        if record.get("ph") != "X" or start is None or lasting is None:
            continue
        of = (number(record, "args", key) for key in ("step", "group"))
        process = names.get(number(record, "pid"), "process")
        found.append(
            _Event(process, text(record, "cat"), text(record, "name"), start * _US, (start + lasting) * _US, *of)
        )
    return found


def _steps(events: Sequence[_Event]) -> list[tuple[float, float, float]]:
    """Number, start and stop of each step of the first worker that computes."""
    first = min((event.process for event in events if event.name == "forward"), key=_by_number, default=None)
    starts: dict[float, float] = {}
    ends: dict[float, float] = {}
    for event in events:
        if event.process != first or event.step is None:
            continue
        ends[event.step] = max(event.stop, ends.get(event.step, event.stop))
        if event.track == "compute":
            starts[event.step] = min(event.start, starts.get(event.step, event.start))
    return [(step, starts[step], starts.get(step + 1, ends[step])) for step in sorted(starts)]


def _by_number(process: str) -> tuple[str, int]:
    name, _, rank = process.rpartition(" ")
    return name, int(rank) if rank.isdecimal() else 0


def _tracks(events: Sequence[_Event], start: float, stop: float) -> list[Track]:
    """The tracks of all processes, workers first, with what lies between `start` and `stop`."""
    found: dict[tuple[str, str], list[Span]] = {}
    for event in sorted(events, key=lambda event: (event.start, -event.stop)):
        about = [f"step {event.step:.0f}"] if event.step is not None else []
        about += [f"group {event.group:.0f}"] if event.group is not None else []
        left, right = max(event.start, start) - start, min(event.stop, stop) - start
        colour = _COLOURS.get(event.name, "blue")
        found.setdefault((event.process, event.track), []).append(
            Span(event.name, left, right, colour, ", ".join(about))
        )
    return [Track(*key, tuple(found[key])) for key in sorted(found, key=_in_order)]


def _in_order(key: tuple[str, str]) -> tuple[bool, tuple[str, int], int, tuple[str, int]]:
    """Workers before servers; in each process the tracks as a step passes through them."""
    process, track = key
    place = next((place for place, name in enumerate(_TRACKS) if track.startswith(name)), len(_TRACKS))
    return not process.startswith("worker"), _by_number(process), place, _by_number(track)


def _most_telling(tracks: Sequence[Track]) -> tuple[tuple[Track, ...], int]:
    """The tracks that there is room for, and how many more there are; those that collect are left out first."""
    kept: list[Track] = []
    spans = 0
    ranked = sorted(
        tracks, key=lambda track: (track.name.startswith("collect"), not track.process.startswith("worker 0"))
    )
    for track in ranked[:_MOST_TRACKS]:
        spans += len(track.spans)
        if spans > _MOST_SPANS and kept:
            break
        kept.append(track)
    shown = tuple(track for track in tracks if track in kept)
    return shown, len(tracks) - len(shown)
