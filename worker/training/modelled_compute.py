"""Times of a worker's compute on another processor, told beside what was measured here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prometheus_client.registry import Collector

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.serving.metrics import modelled_layers
from taihu.kernels.sw26010.errors import BlockingError
from taihu.worker.engine import Model
from taihu.worker.engine.base.layer import Shape
from taihu.worker.fc.connected import tail_start
from taihu.worker.fc.stage import ComputedPart, StagePart
from taihu.worker.sw26010 import LayerTime, ModelledStep, end_times, in_backward_order, layer_times, step_until
from taihu.worker.training.pacing import Pacing, forward_shares
from taihu.worker.training.step_record import StepRecord

_TRACK = "modelled compute"


@dataclass(frozen=True)
class ModelledCompute:
    """Modelled times of a worker's steps; all steps take the same.

    Attributes:
        compute: the value of `cluster.compute`.
        core_groups: that share a batch.
        pace: steps take so many times as long; None where they do not wait.
        step: of the processor, as it is, without the end that is spread over the workers and what is computed again.
        run_again: the first and the last layer of the layout in each segment whose forward backward runs again.
        end: seconds of each part of that end, by layer, part and examples.
        end_seconds: of the whole end.
        forward: layers that take time, in forward order; those that backward does not reach take none there.
        backward: the same layers in the order in which their backward ends.
    """

    compute: str
    core_groups: int
    pace: float | None
    step: ModelledStep
    run_again: tuple[tuple[int, int], ...]
    end: Mapping[tuple[str, ComputedPart, int], float]
    end_seconds: float
    forward: tuple[LayerTime, ...]
    backward: tuple[LayerTime, ...]

    @cached_property
    def planned(self) -> ModelledStep:
        """The step that the planner plans by, as a worker would measure it.

        A segment is computed again before the gradient of its first layer, and the end before the first of all.
        """
        backward = list(self.step.backward_seconds)
        backward[0] += self.end_seconds
        for first, seconds in self._again:
            backward[first] += seconds
        return ModelledStep(self.step.forward_seconds, tuple(backward)).longer(self.pace or 1.0)

    @property
    def _shares(self) -> tuple[float, ...]:
        return forward_shares(self.step.forward_seconds, self.step.backward_seconds)

    @property
    def _again(self) -> Iterable[tuple[int, float]]:
        """The first layer of each segment whose forward is run again, and its seconds."""
        shares = self._shares
        return [(first, math.fsum(shares[first : last + 1])) for first, last in self.run_again]

    @property
    def recompute_seconds(self) -> float:
        """Seconds of what is computed again."""
        return math.fsum(seconds for _, seconds in self._again)

    def pacing(self, clock: Clock) -> Pacing | None:
        """The pace of steps; None where they do not wait."""
        if self.pace is None:
            return None
        step, pace = self.step.longer(self.pace), self.pace
        end: dict[tuple[str, str, int], float] = {part: pace * seconds for part, seconds in self.end.items()}
        return Pacing([pace * each for each in self._shares], step.backward_seconds, clock, end)

    def enter(self, record: StepRecord, tracer: Tracer) -> None:
        """Let a step report the modelled times in place of those measured, and draw them.

        They begin where the step began, layer after layer, on a track of their own. What an end that is spread moved
        was measured, and counts to its backward as in any run.
        """
        record.modelled = self.planned.moving(record.end_waited_s)
        if not tracer.enabled:
            return
        stop_s = record.start_s
        for direction, times in self._directions:
            start_s = stop_s
            for name, seconds in times:
                tracer.add(_TRACK, f"{name} {direction}", stop_s, stop_s + seconds, step=record.step)
                stop_s += seconds
            tracer.add(_TRACK, direction, start_s, stop_s, step=record.step)
        if again := self.recompute_seconds:
            tracer.add(_TRACK, "recompute", stop_s, stop_s + again, step=record.step)

    def collector(self, rank: int) -> Collector:
        """The layers' times for the page of metrics."""
        seconds = {(name, direction): each for direction, times in self._directions for name, each in times}
        return modelled_layers(rank, seconds)

    def results(self, late_s: float = 0.0) -> dict[str, Any]:
        """Results for `--json`; `late_s` are seconds by which this machine was behind the pace."""
        return {
            "compute": self.compute,
            "core_groups": self.core_groups,
            "pace": self.pace,
            "late_seconds": late_s,
            "forward_seconds": math.fsum(layer.forward_seconds for layer in self.forward),
            "backward_seconds": math.fsum(layer.backward_seconds for layer in self.forward),
            "recompute_seconds": self.recompute_seconds,
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind,
                    "forward_seconds": layer.forward_seconds,
                    "backward_seconds": layer.backward_seconds,
                }
                for layer in self.forward
            ],
        }

    @property
    def _directions(self) -> Iterable[tuple[str, list[tuple[str, float]]]]:
        yield "forward", [(layer.name, layer.forward_seconds) for layer in self.forward]
        yield "backward", [(layer.name, layer.backward_seconds) for layer in self.backward if layer.backward_seconds]


def model_compute(
    job: Job, model: Model, input_shape: Shape, layers: int, end: Sequence[StagePart] = ()
) -> ModelledCompute | None:
    """The modelled times that `cluster.compute` asks for; None where times are measured.

    Args:
        job: names the processor, and the batch of a worker.
        model: built; where it recomputes, it knows what.
        input_shape: (height, width, channels) of an image.
        layers: of the layout of what is exchanged.
        end: what this worker computes of an end that is spread over the workers.

    Raises:
        ModelError: the processor model has no such layer.
        ConfigError: a layer does not fit into the processor.
    """
    if not job.models_compute:
        return None
    cluster, batch = job.cluster, job.train.batch
    try:
        whole = {each.name: each for each in layer_times(model, input_shape, batch, cluster.core_groups)}
        spread = end_times(end, whole, cluster.core_groups)
    except BlockingError as error:
        raise ConfigError(f"model {job.model.name} with cluster.compute '{cluster.compute}': {error}") from None
    times = tuple({**whole, **spread.layers}.values())
    return ModelledCompute(
        cluster.compute,
        cluster.core_groups,
        cluster.pace,
        step_until(model, times, layers, tail_start(model) if end else None),
        model.run_again,
        spread.seconds,
        math.fsum(each.forward_seconds + each.backward_seconds for each in spread.layers.values()),
        times,
        in_backward_order(model, times),
    )
