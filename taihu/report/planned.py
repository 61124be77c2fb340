"""A step as the planner predicts it from what a run has measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from taihu.core.base.errors import ConfigError
from taihu.core.planner.groups import Group
from taihu.core.planner.profile import Compression, Profile
from taihu.core.planner.timeline import Timeline as PlannedStep
from taihu.core.planner.timeline import simulate, step_costs
from taihu.report.charts import Figure, Span, Timeline, Track
from taihu.report.run import Run
from taihu.report.values import SECONDS, items, number, text

_MOST_LAYERS: Final = 2000
_LONGEST_S: Final = 1e9


@dataclass(frozen=True)
class Planned:
    """The costs that a run has measured, and a step as its last plan predicts it from them.

    There is no step where the planner does not know how the job's steps run.
    """

    profile: Profile
    step: PlannedStep | None


def planned_of(run: Run) -> Planned | None:
    """The costs and the prediction of a run; None where it has measured no costs."""
    try:
        profile = Profile.from_json(run.results.get("profile"))
        groups = _groups_of(run, len(profile.layers))
        if not (groups and number(run.results, "predicted_seconds_per_step")):
            return Planned(profile, None)
        # Of costs that nobody measured the times may be no numbers.
        with np.errstate(all="ignore"):
            step = simulate(step_costs(profile, _compression_of(run)), groups)
    except (ConfigError, TypeError, ValueError):
        return None
    return Planned(profile, step if 0 < step.seconds < _LONGEST_S else None)


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


def stages_by_layer(profile: Profile, step: PlannedStep) -> list[list[float]]:
    """The seconds of compression, of the ways up and down for each layer: its share of those of its group."""
    layers, stages = profile.layers, [[0.0] * len(profile.layers) for _ in range(3)]
    for times_ in step.groups:
        members = range(times_.group.first_layer, times_.group.last_layer + 1)
        elements = sum(layers[layer].elements for layer in members) or 1
        for stage, (start, stop) in enumerate(zip(times_.starts, times_.ends, strict=True)):
            for layer in members:
                stages[stage][layer] = (stop - start) * layers[layer].elements / elements
    return stages


def planned_timeline(profile: Profile, step: PlannedStep) -> Figure:
    """A step as the plan sees it."""
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
