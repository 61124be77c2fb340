"""A model's training step on the SW26010 model: its results, and the time that every layer takes."""

from taihu.worker.sw26010.end_times import EndTimes, end_times
from taihu.worker.sw26010.model import ProcessorModel
from taihu.worker.sw26010.times import (
    LayerTime,
    ModelledStep,
    in_backward_order,
    layer_times,
    modelled_step,
    step_seconds,
    step_until,
)

__all__ = [
    "EndTimes",
    "LayerTime",
    "ModelledStep",
    "ProcessorModel",
    "end_times",
    "in_backward_order",
    "layer_times",
    "modelled_step",
    "step_seconds",
    "step_until",
]
