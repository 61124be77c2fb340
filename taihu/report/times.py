"""The time of steps: over the run, against the prediction, by layer, and in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from taihu.report.charts import Bars, Figure, Missing, Section, Series
from taihu.report.learning import over_steps
from taihu.report.planned import Planned, planned_timeline, stages_by_layer
from taihu.report.run import Run
from taihu.report.trace import traced_step
from taihu.report.values import SECONDS, items, number, text

_SHARED_OUT = (
    " The exchange is by the measured costs of links; a group's start-up and bytes are shared out over its layers by "
    "their size. Much of it goes on beside backward."
)


def times(run: Run, planned: Planned | None) -> tuple[Section | None, list[Missing]]:
    """All figures of time, and what there is none of."""
    figures = [*_over_run(run), *_parts(run, planned), *_by_layer(run, planned)]
    missing: list[Missing] = []
    step = traced_step(run.trace)
    if step is not None:
        figures.append(Figure(*step))
    elif planned is not None and planned.step is not None:
        figures.append(planned_timeline(planned.profile, planned.step))
        how = f"taihu {run.command} --trace trace.json --trace-steps 20-40"
        missing.append(Missing("the timeline of a real step", how))
    else:
        how = f"taihu {run.command} ... --trace trace.json, then taihu report RUN --trace trace.json"
        missing.append(Missing("the timeline of a step", how))
    if planned is None and not run.is_simulated:
        how = "train for more than exchange.calibration_steps steps with exchange.plan = 'auto', not in fp16"
        missing.append(Missing("costs by layer, and a prediction from them", how))
    elif planned is not None and planned.step is None:
        missing.append(Missing("a prediction of steps", "the planner does not know how the steps of such a job run"))
    return (Section("time", "Where the time goes", figures) if figures else None), missing


def _over_run(run: Run) -> Iterator[Figure]:
    steps = run.steps
    if not steps.has("step_seconds"):
        return
    compress, wait = steps["compress_wait_seconds"], steps["wait_seconds"]
    series = [Series("compute", steps["compute_seconds"], "blue")]
    if any(compress):
        others = tuple(
            None if whole is None else max(0.0, whole - (part or 0.0))
            for whole, part in zip(wait, compress, strict=True)
        )
        series += [Series("wait for compression", compress, "purple"), Series("wait for others", others, "orange")]
    else:
        series.append(Series("wait", wait, "orange"))
    areas = len(series)
    predicted = _predictions(run)
    if any(value is not None for value in predicted):
        series.append(Series("step as predicted", predicted, "red", dashed=True))
    note = "Worker 0. The areas together make up the step; a value is the median of its steps."
    yield Figure("Time of a step, over the run", over_steps(steps, series, SECONDS, areas=areas), note)
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
    place, now = 0, None
    for step in run.steps["step"]:
        while place < len(plans) and plans[place][0] < (step or 0.0):
            now = plans[place][1] or None
            place += 1
        found.append(now)
    return tuple(found)


def _parts(run: Run, planned: Planned | None) -> Iterator[Figure]:
    """The parts of a step beside those that were predicted."""
    rows: list[tuple[str, float | None, float | None, float | None]] = []
    results = run.results
    step = None if planned is None else planned.step
    if step is not None:
        rows.append(("predicted", step.compute_seconds, max(0.0, step.compress_seconds), step.wait_seconds))
    if run.is_simulated:
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
    if planned is not None and planned.profile.compute != "cpu":
        note += f" Compute is modelled in the prediction ({text(planned.profile.compute)})."
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
    columns = [("backward", backward, "gold")]
    if planned.step is not None:
        stages = stages_by_layer(planned.profile, planned.step)
        columns += [("compress", stages[0], "purple"), ("up", stages[1], "teal"), ("down", stages[2], "blue")]
    parts = tuple(Series(name, tuple(reversed(values)), colour) for name, values, colour in columns if any(values))
    is_modelled = planned.profile.compute != "cpu"
    note = "In forward order. " + ("Backward is modelled." if is_modelled else "Backward was measured.")
    if planned.step is not None:
        note += _SHARED_OUT
    names = tuple(text(layer.name) for layer in reversed(layers))
    yield Figure("Time by layer", Bars("layer", names, SECONDS, parts), note)
