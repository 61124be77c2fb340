"""Modelled compute: what the planner, the trace, the metrics and the results are told."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.parts_network import MemoryMover, MemoryNetwork

from taihu.core.base.errors import ConfigError
from taihu.core.coordination.plans.planning import Planning, planned_compression
from taihu.core.job import Job
from taihu.core.optimization import OptimizerShard
from taihu.core.planner.decide import decide
from taihu.core.planner.groups import Group
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.core.settings import OptimizerSettings
from taihu.core.trace import Tracer, busy_seconds, merge_parts
from taihu.core.wire.serving.metrics import WorkerMetrics
from taihu.kernels.sw26010.layer_costs import linear_parts
from taihu.worker.engine import Conv2d, Flatten, GlobalAvgPool, Layer, Linear, Model, ReLU, Sequential, build_model
from taihu.worker.fc.hybrid import HybridModel
from taihu.worker.fc.passes import Scheme
from taihu.worker.fc.stage import ComputedPart
from taihu.worker.sw26010 import layer_times, modelled_step
from taihu.worker.training.modelled_compute import ModelledCompute, model_compute
from taihu.worker.training.pacing import forward_shares
from taihu.worker.training.step_record import StepRecord

_SHAPE = (32, 32, 3)


def job(*, compute: str = "sw26010", core_groups: int = 4, batch: int = 8) -> Job:
    cluster = {"servers": 1, "workers": 1, "compute": compute, "core_groups": core_groups}
    return Job.model_validate({"train": {"batch": batch}, "cluster": cluster})


def modelled(model: Model, of: Job, shape: tuple[int, int, int] = _SHAPE) -> ModelledCompute:
    compute = model_compute(of, model, shape, len(model.layout.layers))
    assert compute is not None
    return compute


def resnet20() -> Model:
    return build_model("resnet20", _SHAPE, 10)


def test_nothing_is_modelled_on_the_cpu() -> None:
    assert model_compute(job(compute="cpu"), resnet20(), _SHAPE, 39) is None


def test_results_hold_the_models_time_of_every_layer() -> None:
    model = resnet20()
    results = modelled(model, job(core_groups=2)).results()
    expected = layer_times(model, _SHAPE, 8, 2)
    assert json.loads(json.dumps(results)) == results
    assert (results["compute"], results["core_groups"]) == ("sw26010", 2)
    for told, layer in zip(results["layers"], expected, strict=True):
        assert (told["name"], told["kind"]) == (layer.name, layer.kind)
        assert told["forward_seconds"] == layer.forward_seconds
        assert told["backward_seconds"] == layer.backward_seconds
    for direction in ("forward_seconds", "backward_seconds"):
        assert results[direction] == pytest.approx(sum(getattr(layer, direction) for layer in expected))


def test_metrics_show_every_layer_in_both_directions() -> None:
    metrics = WorkerMetrics(3)
    model = resnet20()
    metrics.registry.register(modelled(model, job()).collector(3))
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    family = next(family for family in families if family.name == "taihu_modelled_layer_seconds")
    shown: dict[tuple[str, str], float] = {}
    for sample in family.samples:
        assert (sample.labels["role"], sample.labels["rank"]) == ("worker", "3")
        shown[sample.labels["layer"], sample.labels["direction"]] = sample.value
    times = layer_times(model, _SHAPE, 8)
    forward = {(layer.name, "forward"): layer.forward_seconds for layer in times}
    backward = {(layer.name, "backward"): layer.backward_seconds for layer in times if layer.backward_seconds}
    assert shown == forward | backward


def traced(compute: ModelledCompute, folder: Path, starts: tuple[float, ...]) -> dict[str, Any]:
    """The trace of steps that really took 1 ms each."""
    tracer = Tracer()
    for number, start in enumerate(starts, start=1):
        record = StepRecord(number, serial=False, steady=True, start_s=start, end_s=start + 0.001)
        compute.enter(record, tracer)
        tracer.add("compute", "forward", start, start + 0.001, step=number)
    tracer.write_part(folder / "part.json", "worker 0", 0)
    return merge_parts([folder / "part.json"], folder / "trace.json")


def test_the_trace_draws_layer_after_layer_where_the_step_began(tmp_path: Path) -> None:
    model = resnet20()
    compute = modelled(model, job())
    trace = traced(compute, tmp_path, (5.0, 6.0))
    first = [e for e in trace["traceEvents"] if e.get("cat") == "modelled compute" and e["args"]["step"] == 1]
    whole = {e["name"]: e for e in first if " " not in e["name"]}
    layers = [e for e in first if " " in e["name"]]
    times = layer_times(model, _SHAPE, 8)
    assert [e["name"] for e in layers[: len(times)]] == [f"{layer.name} forward" for layer in times]
    backward = [e["name"].removesuffix(" backward") for e in layers[len(times) :]]
    # A gradient's parameters are told in the order of the layout.
    parameters = [layer.name for layer in model.layout.layers]
    assert [name for name in backward if name in parameters] == parameters
    assert set(backward) == {layer.name for layer in times if layer.backward_seconds}
    assert layers[0]["ts"] == whole["forward"]["ts"] == 0.0
    for before, after in pairwise(layers):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.01)
    step = modelled_step(model, _SHAPE, 8)
    spent = step.forward_seconds + sum(step.backward_seconds)
    assert busy_seconds(trace, "worker 0", "modelled compute") == pytest.approx(2 * spent, abs=1e-6)
    rows = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert sorted(rows) == ["compute", "modelled compute"]


def test_modelled_steps_that_take_longer_than_real_ones_lie_in_rows_of_their_own(tmp_path: Path) -> None:
    trace = traced(modelled(resnet20(), job()), tmp_path, (5.0, 5.001))
    rows = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert sorted(rows) == ["compute", "modelled compute", "modelled compute (2)"]


def measured(model: Model, compute: ModelledCompute | None, alpha: float) -> list[StepMeasurement]:
    """The report of a worker whose layers really took 1 ms each, over links that take `alpha` and 100 MB/s."""
    record = StepRecord(1, serial=False, steady=True, start_s=0.0, forward_end_s=0.01)
    record.ready_s = [0.01 + 0.001 * (i + 1) for i in range(len(model.layout.layers))]
    if compute is not None:
        compute.enter(record, Tracer.off())
    groups = tuple(
        GroupMeasurement(e, 0.0, False, 4 * e, 4 * e, alpha + 4e-8 * e, 4e-8 * e)
        for e in (layer.elements for layer in model.layout.layers)
    )
    forward, backward = record.forward_seconds, tuple(record.backward_seconds)
    return [StepMeasurement(number, number == 3, forward, backward, groups) for number in (2, 3)]


def planned(of: Job, alpha: float) -> Planning:
    model = resnet20()
    planning = Planning(of, model.layout)
    planning.report(0, 8, measured(model, model_compute(of, model, _SHAPE, len(model.layout.layers)), alpha))
    return planning


def test_the_profile_has_the_models_seconds_of_every_layer() -> None:
    profile = planned(job(batch=16), 1e-4).profile
    step = modelled_step(resnet20(), _SHAPE, 16)
    assert profile is not None
    assert profile.compute == "sw26010"
    assert profile.forward_seconds == step.forward_seconds
    assert [layer.backward_seconds for layer in profile.layers] == pytest.approx(step.backward_seconds, abs=1e-15)


def test_the_plan_follows_the_modelled_times() -> None:
    alpha = 1e-3
    plans: dict[tuple[str, int], tuple[Group, ...]] = {}
    for compute, batch in (("cpu", 8), ("sw26010", 8), ("sw26010", 1024)):
        planning = planned(job(compute=compute, batch=batch), alpha)
        assert planning.profile is not None
        own = planned_compression(job(), planning.plan.frame_elements)
        best = decide(planning.profile, own, "auto")
        assert planning.plan.groups == best.groups
        assert planning.plan.predicted_seconds == pytest.approx(best.seconds)
        plans[compute, batch] = planning.plan.groups
    assert len(set(plans.values())) == 3
    # Where backward takes seconds, one message at its end costs next to nothing.
    assert plans["sw26010", 1024] == (Group(0, 38),)


def test_segments_are_computed_again_before_the_gradient_of_their_first_layer() -> None:
    model, alone = resnet20(), modelled(resnet20(), job())
    model.recompute(3)
    again = modelled(model, job())
    shares = forward_shares(alone.step.forward_seconds, alone.step.backward_seconds)
    expected = list(alone.step.backward_seconds)
    for first, last in model.run_again:
        expected[first] += sum(shares[first : last + 1])
    assert again.planned.backward_seconds == pytest.approx(expected)
    assert again.planned.forward_seconds == alone.planned.forward_seconds
    assert again.results()["recompute_seconds"] == pytest.approx(sum(expected) - sum(alone.step.backward_seconds))
    # As the simulator has it, which shares forward out by the same rule.
    assert 0 < again.recompute_seconds < alone.step.forward_seconds


@pytest.mark.parametrize("scheme", ["gather", "turns", "slices"])
def test_a_rank_computes_its_columns_of_all_examples(scheme: Scheme) -> None:
    """Of 4 workers, by the costs of products of that shape; rectifiers behind take as long as on one rank."""
    layers = [Conv2d(8, 3, padding=1), ReLU(), Flatten(), Linear(64), ReLU(), Linear(10)]
    model = Model(Sequential(layers), (8, 8, 3), 10)
    whole = {each.name: each for each in layer_times(model, (8, 8, 3), 8)}
    hybrid = HybridModel(model, ["fc1"], rank=1, size=4)
    hybrid.bind(*np.zeros((2, hybrid.layout.elements), np.float32))
    hybrid.attach(MemoryMover(MemoryNetwork(4), 1), OptimizerShard(OptimizerSettings(), hybrid.shards), scheme=scheme)
    end = hybrid.end_parts(8)
    compute = model_compute(job(), model, (8, 8, 3), len(hybrid.layout.layers), end)
    assert compute is not None
    told = {each.name: each for each in compute.forward}
    rows = {"gather": [32], "turns": [8] * 4, "slices": [8] * 4}[scheme]
    parts = [linear_parts(count, 512, 16, core_groups=4) for count in rows]
    forward = sum(part.forward.seconds for part in parts)
    gradients = linear_parts(32, 512, 16, core_groups=4).weight_gradients.seconds
    backward = gradients + sum(part.input_gradient.seconds for part in parts)
    assert told["fc1"].forward_seconds == pytest.approx(forward)
    assert told["fc1"].backward_seconds == pytest.approx(backward)
    assert [name for name, each in told.items() if each != whole[name]] == ["fc1", "fc2"][: 1 + (scheme == "slices")]
    # The end is told as part of the backward of the first layer that is exchanged, fc2.
    assert [layer.name for layer in hybrid.layout.layers] == ["fc2", "conv1"]
    assert compute.step.backward_seconds[0] == 0.0
    assert compute.planned.backward_seconds == (compute.end_seconds, compute.step.backward_seconds[1])
    assert compute.step.forward_seconds == pytest.approx(
        told["conv1"].forward_seconds + told["relu1"].forward_seconds
    )
    # A paced step waits for each part: together they are the end.
    both: tuple[ComputedPart, ...] = ("forward", "input gradient")
    waited = [compute.end[each.name, part, count] for each in end for part in both for count in each.rows]
    waited += [compute.end[each.name, "weight gradients", count] for each in end for count in each.gradient_rows]
    assert sum(waited) == pytest.approx(compute.end_seconds)


class _Mystery(Layer):
    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        self.name = name
        return input_shape

    def forward(self, x: Any, run: Any) -> Any:
        return np.sin(x)

    def backward(self, dy: Any, run: Any) -> Any:
        return dy


def test_a_model_that_the_processor_cannot_run_is_refused_in_one_line() -> None:
    unknown = Model(Sequential([Flatten(), _Mystery(), Linear(10)]), _SHAPE, 10)
    with pytest.raises(ConfigError, match=r"mystery1: the SW26010 model has no such layer.*--compute cpu"):
        model_compute(job(), unknown, _SHAPE, 1)
    large = Model(Sequential([GlobalAvgPool(), Linear(10)]), (400, 400, 3), 10)
    with pytest.raises(ConfigError, match=r"cluster.compute 'sw26010': .*") as caught:
        model_compute(job(), large, (400, 400, 3), 1)
    assert len(str(caught.value).splitlines()) == 1
