"""The time of steps: over the run, against the prediction, by layer, and in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from taihu.errors import ConfigError
from taihu.planner.groups import Group
from taihu.planner.profile import Compression, Profile
from taihu.planner.timeline import Timeline as PlannedStep
from taihu.planner.timeline import simulate, step_costs
from taihu.report.charts import Bars, Figure, Lines, Missing, Section, Series, Span, Timeline, Track
from taihu.report.learning import over_steps
from taihu.report.run import Run
from taihu.report.trace import traced_step
from taihu.report.values import NUMBER, SECONDS, items, number, text

__all__ = ["Planned", "planned_of", "times"]

_MOST_LAYERS: Final = 2000
_LONGEST_S: Final = 1e9


@dataclass(frozen=True)
class Planned:
    """A step as the plan of a run predicts it, from what the run has measured."""

    profile: Profile
    step: PlannedStep


def planned_of(run: Run) -> Planned | None:
    """The prediction that belongs to the last plan; None where the run has measured no costs."""
    try:
        profile = Profile.from_json(run.results.get("profile"))
        groups = _groups_of(run, len(profile.layers))
        if not groups:
            return None
        # Of costs that nobody measured the times may be no numbers.
        with np.errstate(all="ignore"):
            step = simulate(step_costs(profile, _compression_of(run)), groups)
    except (ConfigError, TypeError, ValueError):
        return None
    return Planned(profile, step) if 0 < step.seconds < _LONGEST_S else None


def _groups_of(run: Run, layers: int) -> tuple[Group, ...]:
    """The groups of the last plan; none where they do not cover every layer once, in order, or there are too many."""
    groups, behind = [], 0
    for row in items(run.results, "group_layers"):
        first, last = number(row, 0), number(row, 1)
        if first != behind or last is None or not first <= last < layers <= _MOST_LAYERS:
            return ()
        groups.append(Group(behind, int(last)))
        behind = int(last) + 1
    return tuple(groups) if behind == layers else ()


def _compression_of(run: Run) -> Compression:
    """The compression of a run as its plan saw it."""
    found = Compression.of_results(run.results)
    frame = number(run.results, "frame_bytes")
    wide = text(run.settings, "compression", "value_type") in ("", "fp32")
    return replace(found, frame_bytes=int(frame or found.frame_bytes), value_bytes=4 if wide else 2)


def times(run: Run, planned: Planned | None) -> tuple[Section | None, list[Missing]]:
    """All figures of time, and what there is none of."""
    figures = [*_sweep(run), *_over_run(run), *_parts(run, planned), *_by_layer(run, planned)]
    missing: list[Missing] = []
    step = traced_step(run.trace)
    if step is not None:
        figures.append(Figure(*step))
    elif planned is not None:
        figures.append(_planned_timeline(planned))
        how = "taihu train --trace trace.json --trace-steps 20-40"
        missing.append(Missing("the timeline of a real step", how))
    else:
        command = "simulate" if run.is_simulated else "train"
        how = f"taihu {command} ... --trace trace.json, then taihu report RUN --trace trace.json"
        missing.append(Missing("the timeline of a step", how))
    if planned is None and not run.is_simulated:
        how = "train for more than exchange.calibration_steps steps with exchange.plan = 'auto', not in fp16"
        missing.append(Missing("costs by layer, and a prediction from them", how))
    return (Section("time", "Where the time goes", figures) if figures else None), missing


def _over_run(run: Run) -> Iterator[Figure]:
    steps = run.steps
    if not steps.has("step_seconds"):
        return
    series = [Series("compute", steps["compute_seconds"], "blue"), Series("wait", steps["wait_seconds"], "orange")]
    predicted = _predictions(run)
    if any(value is not None for value in predicted):
        series.append(Series("step as predicted", predicted, "red", dashed=True))
    note = "Worker 0. Compute and wait make up the step; a value is the median of its steps."
    yield Figure("Time of a step, over the run", over_steps(steps, series, SECONDS, areas=2), note)
    beside = [Series("exchange", steps["exchange_seconds"], "teal")]
    if any(steps["compress_seconds"]):
        beside.append(Series("compress", steps["compress_seconds"], "purple"))
    note = "Worker 0: from the first push to the last answer, and selecting and packing; most of it beside backward."
    yield Figure("Beside computing, over the run", over_steps(steps, beside, SECONDS), note)


def _predictions(run: Run) -> tuple[float | None, ...]:
    """For each step what the plan of then predicted."""
    plans = [
        (number(event, "step") or 0.0, number(event, "predicted_seconds"))
        for event in run.events
        if text(event, "event") == "planned"
    ]
    found: list[float | None] = []
    for step in run.steps["step"]:
        earlier = [seconds for after, seconds in plans if step is not None and after < step]
        found.append((earlier[-1] or None) if earlier else None)
    return tuple(found)


def _sweep(run: Run) -> Iterator[Figure]:
    """Rows of a simulation over nodes or servers."""
    rows = [row for row in items(run.results, "rows") if isinstance(row, Mapping)] if run.is_sweep else []
    counts = {key: [number(row, key) for row in rows] for key in ("nodes", "servers")}
    key = "servers" if len(set(counts["nodes"])) == 1 and len(set(counts["servers"])) > 1 else "nodes"
    rows = sorted((row for row in rows if number(row, key) is not None), key=lambda row: number(row, key) or 0.0)
    if not rows:
        return
    names = tuple(f"{number(row, key):,.0f}" for row in rows)

    def column(*path: str) -> tuple[float | None, ...]:
        return tuple(number(row, *path) for row in rows)

    parts = (
        Series("compute", column("seconds_compute"), "blue"),
        Series("wait", column("seconds_wait"), "orange"),
    )
    yield Figure(f"Time of a step, by {key}", Bars(key, names, SECONDS, parts), "Compute and wait make up the step.")
    places = tuple(number(row, key) or 0.0 for row in rows)
    lines: tuple[Series, ...] = (Series("speed-up over one worker", column("speed_up"), "blue", dots=True),)
    if key == "nodes":
        lines += (Series("as many times as nodes", places, "grey", dashed=True),)
    yield Figure("Speed-up", Lines(key, places, names, NUMBER, lines))


def _parts(run: Run, planned: Planned | None) -> Iterator[Figure]:
    """The parts of a step beside those that were predicted."""
    rows: list[tuple[str, float | None, float | None, float | None]] = []
    results = run.results
    if planned is not None:
        step = planned.step
        rows.append(("predicted", step.compute_seconds, max(0.0, step.compress_seconds), step.wait_seconds))
    if run.is_simulated and not run.is_sweep:
        compute, wait = (number(results, f"seconds_{name}") for name in ("compute", "wait"))
        rows.append(("simulated", compute, None, wait))
    elif number(results, "seconds_compute", "median") is not None:
        compute, compress, wait = (
            number(results, f"seconds_{name}", "median") or 0.0 for name in ("compute", "compress_wait", "wait")
        )
        rows.append(("measured", compute, min(compress, wait), max(0.0, wait - compress)))
    if not rows:
        return
    names, *columns = zip(*rows, strict=True)
    kinds = (("compute", "blue"), ("wait for compression", "purple"), ("wait for others", "orange"))
    told = zip(kinds, columns, strict=True)
    chart = Bars(
        "step", names, SECONDS, tuple(Series(name, values, colour) for (name, colour), values in told if any(values))
    )
    if len(rows) < 2:
        yield Figure("The parts of a step", chart)
        return
    note = "The median of each part, of worker 0's steady steps, and what the costs measured last predict."
    yield Figure("A step as predicted and as measured", chart, note)


def _by_layer(run: Run, planned: Planned | None) -> Iterator[Figure]:
    modelled = [row for row in items(run.results, "modelled", "layers") if isinstance(row, Mapping)]
    if modelled:
        names = tuple(text(row, "name") for row in modelled)
        parts = tuple(
            Series(name, tuple(number(row, f"{name}_seconds") for row in modelled), colour)
            for name, colour in (("forward", "blue"), ("backward", "gold"))
        )
        note = "Modelled for the processor that the job is planned for, in forward order."
        yield Figure("Compute by layer, modelled", Bars("layer", names, SECONDS, parts), note)
    if planned is None:
        return
    layers = planned.profile.layers
    backward = [layer.backward_seconds for layer in layers]
    stages = _stages_by_layer(planned)
    columns = [("backward, measured", backward, "gold")]
    columns += [("compress", stages[0], "purple"), ("up", stages[1], "teal"), ("down", stages[2], "blue")]
    parts = tuple(Series(name, tuple(reversed(values)), colour) for name, values, colour in columns if any(values))
    note = (
        "In forward order. The exchange is by the measured costs of links; a group's start-up and bytes are shared "
        "out over its layers by their size. Much of it goes on beside backward."
    )
    names = tuple(text(layer.name) for layer in reversed(layers))
    yield Figure("Time by layer", Bars("layer", names, SECONDS, parts), note)


def _stages_by_layer(planned: Planned) -> list[list[float]]:
    """The seconds of compression, of the ways up and down for each layer: its share of those of its group."""
    layers, stages = planned.profile.layers, [[0.0] * len(planned.profile.layers) for _ in range(3)]
    for times_ in planned.step.groups:
        members = range(times_.group.first_layer, times_.group.last_layer + 1)
        elements = sum(layers[layer].elements for layer in members) or 1
        for stage, (start, stop) in enumerate(zip(times_.starts, times_.ends, strict=True)):
            for layer in members:
                stages[stage][layer] = (stop - start) * layers[layer].elements / elements
    return stages


def _planned_timeline(planned: Planned) -> Figure:
    """A step as the plan sees it."""
    profile, step = planned.profile, planned.step
    compute = [Span("forward", 0.0, profile.forward_seconds, "blue")]
    now = profile.forward_seconds
    for layer in profile.layers:
        compute.append(Span("backward", now, now + layer.backward_seconds, "gold", text(layer.name)))
        now += layer.backward_seconds
    tracks = [Track("worker", "compute", tuple(compute))]
    for stage, (name, colour) in enumerate((("compress", "purple"), ("up", "teal"), ("down", "orange"))):
        spans = tuple(
            Span(name, of.starts[stage], of.ends[stage], colour, _of_group(profile, of.group, place))
            for place, of in enumerate(step.groups)
            if of.ends[stage] > of.starts[stage]
        )
        if spans:
            tracks.append(Track("worker", name, spans))
    note = f"As the last plan predicts it, {SECONDS.text(step.seconds)} in all; no step of this run was recorded."
    return Figure("Timeline of a step, predicted", Timeline(tuple(tracks), step.seconds), note)


def _of_group(profile: Profile, group: Group, place: int) -> str:
    names = dict.fromkeys(text(profile.layers[layer].name) for layer in (group.first_layer, group.last_layer))
    return f"group {place}: {' to '.join(names)}"
