"""Traces: what is recorded, the Chrome format by a checker of its own, and sums against counting nanoseconds."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import one_of_each

from taihu.core.base.errors import ConfigError, RunError, WriteError
from taihu.core.trace import Tracer, busy_seconds, merge_parts, overlap_seconds

quick = settings(deadline=None, max_examples=60)

Record = dict[str, Any]
Where = tuple[str, str, str, int | None, int | None, int | None]


class Event(NamedTuple):
    """The slices and instants that call sites give a tracer, in nanoseconds."""

    track: str
    name: str
    start: int
    length: int
    step: int | None = None
    group: int | None = None
    peer: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.length


class Process(NamedTuple):
    name: str
    sort_index: int
    offset: int
    events: list[Event]


SMALL = (None, 0, 1, 2)
EVENTS = one_of_each(
    ("compute", "push server 0", "push server 1", "a (2)"),
    ("push", "pull", "update", "forward"),
    range(31),
    range(13),
    SMALL,
    SMALL,
    SMALL,
).map(lambda fields: Event(*fields))
PROCESSES = st.builds(
    lambda own, events: Process(own[0], own[1], own[2], events),
    one_of_each(("worker 0", "worker 1", "server 0", "server 1"), range(-1, 2), range(-20, 21)),
    st.lists(EVENTS, max_size=15),
)


def seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9


def tell(tracer: Tracer, events: Iterable[Event]) -> None:
    for event in events:
        tracer.add(
            event.track,
            event.name,
            seconds(event.start),
            seconds(event.stop),
            step=event.step,
            group=event.group,
            peer=event.peer,
        )


def write(folder: Path, processes: Sequence[Process]) -> list[Path]:
    paths = []
    for number, process in enumerate(processes):
        tracer = Tracer()
        tell(tracer, process.events)
        paths.append(folder / f"{number}.part")
        tracer.write_part(paths[-1], process.name, process.sort_index, offset_s=seconds(process.offset))
    return paths


def merged(processes: Sequence[Process]) -> Record:
    with TemporaryDirectory() as folder:
        out = Path(folder, "trace.json")
        trace = merge_parts(write(Path(folder), processes), out)
        assert strict(out) == trace
        return trace


def trace_of(tracer: Tracer, process: str = "worker 0") -> Record:
    with TemporaryDirectory() as folder:
        tracer.write_part(Path(folder, "part"), process, 0)
        return merge_parts([Path(folder, "part")], Path(folder, "trace.json"))


def strict(path: Path) -> Record:
    """JSON as browsers read it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    trace: Record = json.loads(path.read_text(), parse_constant=refuse)
    return trace


def nanoseconds(record: Record, field: str = "ts") -> int:
    exact: int = round(record[field] * 1000)
    assert record[field] == exact / 1000
    return exact


def slices(trace: Record) -> list[Record]:
    return [record for record in trace["traceEvents"] if record["ph"] == "X"]


def names(trace: Record, kind: str) -> dict[int, str]:
    """The name of each process by pid, or of each row by tid."""
    key = "pid" if kind == "process_name" else "tid"
    return {record[key]: record["args"]["name"] for record in trace["traceEvents"] if record["name"] == kind}


def check_format(trace: Record) -> None:
    """The viewers' demands: complete records in order of time, named rows, slices that nest, whole arrows."""
    assert trace["displayTimeUnit"] == "ms"
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    named = Counter((r["pid"], r["tid"]) for r in trace["traceEvents"] if r["name"] == "thread_name")
    processes = Counter(r["pid"] for r in trace["traceEvents"] if r["name"] == "process_name")
    flows: dict[str, list[int]] = {"s": [], "f": []}
    last = 0
    for record in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(record)
        assert record["ph"] in "MXsf"
        assert processes[record["pid"]] == 1
        if record["ph"] == "M":
            assert last == 0
            continue
        assert named[record["pid"], record["tid"]] == 1
        start = nanoseconds(record)
        assert start >= last
        last = start
        if record["ph"] == "X":
            stop = start + nanoseconds(record, "dur")
            assert stop >= start
            rows[record["pid"], record["tid"]].append((start, stop))
        else:
            flows[record["ph"]].append(record["id"])
            # An arrow's end is read when its slice, read before it, is open.
            assert any(begin <= start < end or begin == start for begin, end in rows[record["pid"], record["tid"]])
            assert record["ph"] == "s" or record["bp"] == "e"
            assert record["ph"] == "s" or record["id"] in flows["s"]
    assert sorted(flows["s"]) == sorted(flows["f"]) == sorted(set(flows["s"]))
    assert len({tid for _, tid in named}) == len(named)
    assert {tid for _, tid in named}.isdisjoint(processes)
    for row in rows.values():
        # A stack, as the viewers keep it: what is read while a slice is open lies in it.
        open_stops: list[int] = []
        for start, stop in row:
            open_stops = [end for end in open_stops if end > start]
            assert all(stop <= end for end in open_stops)
            open_stops.append(stop)


def contents(trace: Record) -> Counter[tuple[Where, int, int]]:
    process = names(trace, "process_name")
    return Counter(
        (
            (
                process[record["pid"]],
                record["cat"],
                record["name"],
                record["args"].get("step"),
                record["args"].get("group"),
                record["args"].get("peer"),
            ),
            nanoseconds(record),
            nanoseconds(record, "dur"),
        )
        for record in slices(trace)
    )


# recording


@quick
@given(
    st.lists(EVENTS, max_size=20),
    st.lists(st.sampled_from([math.nan, math.inf, -math.inf, -1.0]), max_size=20),
    st.integers(0, 12),
    st.integers(0, 2),
    st.one_of(st.none(), st.integers(2, 3)),
)
def test_steps_of_the_window_are_kept_up_to_the_limit_and_the_rest_is_counted(
    events: list[Event], bad_stops_s: list[float], limit: int, first: int, last: int | None
) -> None:
    tracer = Tracer(limit=limit, first_step=first, last_step=last)
    tell(tracer, events)
    for stop_s in bad_stops_s:
        tracer.add("compute", "forward", 0.0, stop_s, step=2)
        tracer.add("compute", "forward", -math.inf, stop_s, step=2)
    trace = trace_of(tracer)
    wanted = [
        event for event in events if event.step is None or first <= event.step <= (math.inf if last is None else last)
    ]
    kept = wanted[:limit]
    origin = min((event.start for event in kept), default=0)
    assert contents(trace) == Counter(
        (("worker 0", *event[:2], *event[4:]), event.start - origin, event.length) for event in kept
    )
    dropped = len(wanted) - len(kept) + 2 * len(bad_stops_s) if limit else 0
    assert [entry["dropped"] for entry in trace["otherData"]["processes"]] == [dropped]
    assert tracer.enabled == (limit > 0)


@pytest.mark.parametrize("limit", [10**6, 1000])
def test_threads_lose_nothing_and_what_is_too_much_is_counted(limit: int) -> None:
    tracer = Tracer(count().__next__, limit=limit)
    barrier = threading.Barrier(6)

    def record(thread: int) -> None:
        barrier.wait()
        for step in range(500):
            with tracer.span("forward", track=f"track {thread}", step=step):
                pass

    threads = [threading.Thread(target=record, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = trace_of(tracer)
    seen = [(record["cat"], record["args"]["step"]) for record in slices(trace)]
    assert len(set(seen)) == len(seen) == min(limit, 3000)
    assert trace["otherData"]["processes"][0]["dropped"] == 3000 - len(seen)
    check_format(trace)


def test_the_limit_holds_when_a_thread_comes_between_the_check_and_the_record() -> None:
    tracer = Tracer(limit=1)

    class Interrupted(float):
        """A time at whose comparison another thread records its event."""

        def __gt__(self, other: float) -> bool:
            tracer.add("compute", "other", 1.0, 2.0)
            return float(self) > other

    tracer.add("compute", "forward", Interrupted(3.0), 4.0)
    trace = trace_of(tracer)
    assert [record["name"] for record in slices(trace)] == ["other"]
    assert trace["otherData"]["processes"][0]["dropped"] == 1


def test_a_span_is_timed_by_the_clock_given_also_when_its_body_raises() -> None:
    tracer = Tracer(iter([1.0, 2.0, 4.0, 7.0]).__next__)
    with (
        pytest.raises(RuntimeError, match="lost"),
        tracer.span("step", track="compute"),
        tracer.span("pull", track="compute", step=3, group=1, peer=0),
    ):
        raise RuntimeError("lost")
    assert contents(trace_of(tracer)) == {
        (("worker 0", "compute", "step", None, None, None), 0, 6 * 10**9): 1,
        (("worker 0", "compute", "pull", 3, 1, 0), 10**9, 2 * 10**9): 1,
    }


def test_without_a_trace_the_clock_is_not_even_read() -> None:
    def clock() -> float:
        raise AssertionError("read")

    tracer = Tracer(clock, limit=0)
    with tracer.span("compress", track="compress", step=3):
        pass
    assert not tracer.enabled
    assert not Tracer.off().enabled
    assert not slices(trace_of(tracer))


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    assert Tracer(first_step=5, last_step=5).enabled
    with pytest.raises(ConfigError, match="steps 6 to 5: expected the first not after the last"):
        Tracer(first_step=6, last_step=5)


def test_a_part_can_be_written_while_recording_goes_on(tmp_path: Path) -> None:
    tracer = Tracer(limit=2)
    tell(tracer, [Event("compute", "forward", 0, 1)])
    tracer.write_part(tmp_path / "part", "worker 0", 0)
    tell(tracer, [Event("compute", "forward", 2, 1)] * 3)
    assert len(slices(merge_parts([tmp_path / "part"], tmp_path / "trace"))) == 1
    tracer.write_part(tmp_path / "part", "worker 0", 0)
    trace = merge_parts([tmp_path / "part"], tmp_path / "trace")
    assert len(slices(trace)) == 2
    assert trace["otherData"]["processes"][0]["dropped"] == 2


# merging


@quick
@given(st.lists(PROCESSES, min_size=1, max_size=4))
def test_every_event_is_shown_at_its_time_on_the_coordinators_clock(processes: list[Process]) -> None:
    trace = merged(processes)
    check_format(trace)
    shifted = [(process, event, event.start + process.offset) for process in processes for event in process.events]
    origin = min((start for _, _, start in shifted), default=0)
    assert contents(trace) == Counter(
        ((process.name, *event[:2], *event[4:]), start - origin, event.length) for process, event, start in shifted
    )


@quick
@given(st.lists(PROCESSES, min_size=1, max_size=3), st.data())
def test_the_order_of_the_parts_does_not_matter(processes: list[Process], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        paths = write(Path(folder), processes)
        paths += [Path(folder, "missing"), Path(folder, "also missing")]
        first = merge_parts(paths, Path(folder, "first"))
        merge_parts(data.draw(st.permutations(paths)), Path(folder, "second"))
        assert Path(folder, "first").read_text() == Path(folder, "second").read_text()
    shown = [entry["process"] for entry in first["otherData"]["processes"]]
    assert shown == [name for _, name in sorted((process.sort_index, process.name) for process in processes)]
    assert [entry["pid"] for entry in first["otherData"]["processes"]] == [*range(1, len(processes) + 1)]
    assert [*names(first, "process_name").values()] == shown


@quick
@given(st.lists(EVENTS, max_size=15))
def test_rows_carry_their_tracks_name_and_are_no_more_than_needed(events: list[Event]) -> None:
    trace = merged([Process("worker 0", 0, 0, events)])
    rows = names(trace, "thread_name")
    rows_of_track: dict[str, set[int]] = defaultdict(set)
    for record in slices(trace):
        rows_of_track[record["cat"]].add(record["tid"])
    for track, tids in rows_of_track.items():
        assert [rows[tid] for tid in sorted(tids)] == [track, *(f"{track} ({n})" for n in range(2, len(tids) + 1))]
        own = [event for event in events if event.track == track]
        crossing = [(a, b) for a in own for b in own if a.start < b.start < a.stop < b.stop]
        assert (len(tids) == 1) == (not crossing)
        assert len(tids) <= max(1, *(sum(a.start <= b.start < a.stop for a in own) for b in own))
    assert set(rows) == {tid for tids in rows_of_track.values() for tid in tids}


def test_events_that_cross_get_rows_of_their_own_and_events_that_nest_do_not() -> None:
    events = [
        Event("pull server 0", "long", 0, 100),
        Event("pull server 0", "inside", 0, 50),
        Event("pull server 0", "across", 90, 20),
        Event("pull server 0", "across both", 95, 20),
        Event("pull server 0", "after", 100, 10),
        Event("compute", "forward", 5, 1000),
    ]
    trace = merged([Process("worker 0", 0, 0, events)])
    rows = names(trace, "thread_name")
    assert {record["name"]: rows[record["tid"]] for record in slices(trace)} == {
        "long": "pull server 0",
        "inside": "pull server 0",
        "across": "pull server 0 (2)",
        "across both": "pull server 0 (3)",
        "after": "pull server 0",
        "forward": "compute",
    }


def test_rows_and_processes_are_in_the_order_of_first_use_and_of_their_index() -> None:
    late = [
        Event("compress", "compress", 7, 1),
        Event("compute", "forward", 3, 2),
        Event("compute", "backward", 5, 4),
    ]
    trace = merged([Process("server 0", 1, 0, [Event("update", "update", 1, 1)]), Process("worker 0", 0, 0, late)])
    order = {
        kind: [r["args"]["sort_index"] for r in trace["traceEvents"] if r["name"] == f"{kind}_sort_index"]
        for kind in ("process", "thread")
    }
    assert [*names(trace, "process_name").values()] == ["worker 0", "server 0"]
    assert [*names(trace, "thread_name").values()] == ["compute", "compress", "update"]
    assert all(indices == sorted(set(indices)) for indices in order.values())
    assert {kind: len(indices) for kind, indices in order.items()} == {"process": 2, "thread": 3}


def test_clocks_that_differ_by_days_are_aligned_to_the_nanosecond_scale(tmp_path: Path) -> None:
    ahead_s = 86400.0 * 40
    for name, offset_s in (("server 0", 0.0), ("worker 0", ahead_s)):
        tracer = Tracer()
        tracer.add("row", "event", ahead_s - offset_s + 0.25, ahead_s - offset_s + 0.5)
        tracer.write_part(tmp_path / name, name, 0, offset_s=offset_s, error_s=0.5 if offset_s else math.inf)
    trace = merge_parts([tmp_path / "server 0", tmp_path / "worker 0"], tmp_path / "trace")
    assert strict(tmp_path / "trace") == trace
    assert {(record["ts"], record["dur"]) for record in slices(trace)} == {(0.0, 250000.0)}
    assert [entry["clock_error_s"] for entry in trace["otherData"]["processes"]] == [None, 0.5]


# parts that are not there


@quick
@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_part_is_left_out_and_named(kept: float) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        whole, cut = write(folder, [Process("worker 0", 0, 0, [Event("compute", "forward", 0, 1)])] * 2)
        text = cut.read_text()
        cut.write_text(text[: int(len(text) * kept)])
        (folder / "foreign").write_text('{"steps": 3}')
        (folder / "list").write_text("[]")
        (folder / "binary").write_bytes(b"\xff\xfe")
        others = [folder / "foreign", folder / "list", folder / "binary", folder / "missing", folder]
        trace = merge_parts([whole, cut, *others], folder / "trace")
        assert strict(folder / "trace") == trace
        skipped = trace["otherData"]["skipped"]
        assert set(skipped) == {cut.name, *(path.name for path in others)}
        assert skipped["missing"] == "No such file or directory"
        assert skipped["foreign"].startswith("not a whole trace part: expected the format")
        assert len(slices(trace)) == 1


def test_with_no_part_at_all_there_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no trace: .* \(a: No such file or directory; b: No such .*\)"):
        merge_parts([tmp_path / "b", tmp_path / "a"], tmp_path / "trace")
    with pytest.raises(RunError, match="no process wrote one"):
        merge_parts([], tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "file"
    with pytest.raises(WriteError, match=r"cannot write .*nowhere.file: No such file or directory"):
        Tracer().write_part(nowhere, "worker 0", 0)
    Tracer().write_part(tmp_path / "part", "worker 0", 0)
    with pytest.raises(WriteError, match=r"cannot write .*nowhere.file: No such file or directory"):
        merge_parts([tmp_path / "part"], nowhere)


# arrows


def arrows(trace: Record) -> Counter[tuple[str, str, int, int]]:
    """(row the arrow leaves, row it reaches, its begin and end in nanoseconds)."""
    process, rows = names(trace, "process_name"), names(trace, "thread_name")
    ends = {phase: {r["id"]: r for r in trace["traceEvents"] if r["ph"] == phase} for phase in "sf"}

    def place(record: Record) -> str:
        return f"{process[record['pid']]}: {rows[record['tid']]}"

    assert all((ends["f"][i]["name"], ends["f"][i]["cat"]) == (s["name"], s["cat"]) for i, s in ends["s"].items())
    return Counter(
        (place(begin), place(ends["f"][i]), nanoseconds(begin), nanoseconds(ends["f"][i]))
        for i, begin in ends["s"].items()
    )


def test_arrows_lead_from_a_push_to_the_update_and_on_to_the_pulls() -> None:
    worker = [
        Event("push", "push", 0, 10, step=1, group=0, peer=1),
        Event("pull", "pull", 12, 30, step=1, group=0, peer=1),
        Event("push", "push", 50, 10, step=2, group=0, peer=1),
        Event("push", "push", 50, 10, step=1, group=1, peer=1),
        Event("push", "push", 50, 10, step=1, group=0, peer=0),
    ]
    server = [Event("sum", "update", 20, 10, step=1, group=0), Event("sum", "other", 20, 10, step=2, group=0)]
    trace = merged([Process("server 1", 0, 0, server), Process("worker 0", 1, 0, worker)])
    check_format(trace)
    # The pull was waiting when the update began: the arrow is drawn where both are open.
    assert arrows(trace) == {
        ("worker 0: push", "server 1: sum", 0, 20): 1,
        ("server 1: sum", "worker 0: pull", 20, 20): 1,
    }


def test_of_a_groups_parts_the_last_to_end_are_joined() -> None:
    parts = [("early", 0, 5), ("last", 1, 8), ("short", 3, 2)]
    worker = [Event(f"push {row}", "push", start, length, 1, 0, 0) for row, start, length in parts]
    server = [Event(f"sum {row}", "update", start + 10, length, 1, 0) for row, start, length in parts]
    trace = merged([Process("server 0", 0, 0, server), Process("worker 0", 1, 0, worker)])
    assert arrows(trace) == {("worker 0: push last", "server 0: sum last", 1, 11): 1}


def test_an_arrow_into_the_past_is_not_drawn() -> None:
    push = Event("push", "push", 20, 10, 1, 0, 0)
    for update, drawn in ((Event("sum", "update", 5, 15, 1, 0), 0), (Event("sum", "update", 5, 16, 1, 0), 1)):
        trace = merged([Process("server 0", 0, 0, [update]), Process("worker 0", 1, 0, [push])])
        check_format(trace)
        assert sum(arrows(trace).values()) == drawn


@quick
@given(st.lists(st.integers(0, 50), min_size=12, max_size=12))
def test_every_push_of_every_worker_has_its_arrow(lengths: list[int]) -> None:
    steps = [(step, group, server) for step in (1, 2) for group in (0, 1) for server in (0, 1)]
    workers = [
        Process(
            f"worker {rank}",
            rank + 2,
            0,
            [
                Event(f"{name} server {server}", name, at, lengths[(at + rank) % 12], step, group, server)
                for step, group, server in steps
                for name, at in (("push", step * 100), ("pull", step * 100 + 50))
            ],
        )
        for rank in (0, 1, 2)
    ]
    servers = [
        Process(
            f"server {index}",
            index,
            0,
            [
                Event("sum", "update", step * 100 + 30, 30, step, group)
                for step, group, server in steps
                if server == index
            ],
        )
        for index in (0, 1)
    ]
    trace = merged([*workers, *servers])
    check_format(trace)
    assert sum(arrows(trace).values()) == len(workers) * len(steps) * 2


# sums


@quick
@given(st.lists(EVENTS, max_size=12), st.lists(EVENTS, max_size=12))
def test_sums_are_what_counting_nanoseconds_gives(events: list[Event], other: list[Event]) -> None:
    trace = merged([Process("worker 0", 0, 0, events), Process("worker 1", 0, 0, other)])

    def busy(*tracks: str) -> set[int]:
        return {ns for event in events if event.track in tracks for ns in range(event.start, event.stop)}

    compute, pushes = busy("compute"), busy("push server 0", "push server 1")
    assert busy_seconds(trace, "worker 0", "compute") == seconds(len(compute))
    assert busy_seconds(trace, "worker 0", "push server *") == seconds(len(pushes))
    assert overlap_seconds(trace, "worker 0", "compute", "push *") == seconds(len(compute & pushes))
    assert overlap_seconds(trace, "worker 0", "push *", "compute") == seconds(len(compute & pushes))
    assert overlap_seconds(trace, "worker 0", "compute", "compute") == seconds(len(compute))
    assert overlap_seconds(trace, "worker 0", "compute", "none") == 0.0
    assert busy_seconds(trace, "worker 7", "compute") == 0.0
