"""Times of a worker's compute on another processor, told beside what was measured here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client.registry import Collector

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.trace import Tracer
from taihu.core.wire.metrics import modelled_layers
from taihu.kernels.sw26010.errors import BlockingError
from taihu.worker.engine import Model
from taihu.worker.engine.base.layer import Shape
from taihu.worker.sw26010 import LayerTime, ModelledStep, in_backward_order, layer_times, modelled_step
from taihu.worker.training.step_record import StepRecord

__all__ = ["ModelledCompute", "model_compute"]

_TRACK = "modelled compute"


@dataclass(frozen=True)
class ModelledCompute:
    """Modelled times of a worker's steps; all steps take the same.

    Attributes:
        compute: the value of `cluster.compute`.
        core_groups: that share a batch.
        pace: steps take so many times as long; None where they do not wait.
        step: of the processor, as it is.
        forward: layers that take time, in forward order; those that backward does not reach take none there.
        backward: the same layers in the order in which their backward ends.
    """

    compute: str
    core_groups: int
    pace: float | None
    step: ModelledStep
    forward: tuple[LayerTime, ...]
    backward: tuple[LayerTime, ...]

    @property
    def planned(self) -> ModelledStep:
        """The step that the planner plans by."""
        return self.step.longer(self.pace or 1.0)

    def enter(self, record: StepRecord, tracer: Tracer) -> None:
        """Let a step report the modelled times in place of those measured, and draw them.

        They begin where the step began, layer after layer, on a track of their own.
        """
        record.modelled = self.planned
        if not tracer.enabled:
            return
        stop_s = record.start_s
        for direction, times in self._directions:
            start_s = stop_s
            for name, seconds in times:
                tracer.add(_TRACK, f"{name} {direction}", stop_s, stop_s + seconds, step=record.step)
                stop_s += seconds
            tracer.add(_TRACK, direction, start_s, stop_s, step=record.step)

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
            "forward_seconds": self.step.forward_seconds,
            "backward_seconds": sum(self.step.backward_seconds),
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


def model_compute(job: Job, model: Model, input_shape: Shape) -> ModelledCompute | None:
    """The modelled times that `cluster.compute` asks for; None where times are measured.

    Args:
        job: names the processor, and the batch of a worker.
        model: built.
        input_shape: (height, width, channels) of an image.

    Raises:
        ModelError: the processor model has no such layer.
        ConfigError: a layer does not fit into the processor.
    """
    if not job.models_compute:
        return None
    cluster, batch = job.cluster, job.train.batch
    try:
        times = layer_times(model, input_shape, batch, cluster.core_groups)
        step = modelled_step(model, input_shape, batch, cluster.core_groups)
    except BlockingError as error:
        raise ConfigError(f"model {job.model.name} with cluster.compute '{cluster.compute}': {error}") from None
    backward = in_backward_order(model, times)
    return ModelledCompute(cluster.compute, cluster.core_groups, cluster.pace, step, times, backward)
