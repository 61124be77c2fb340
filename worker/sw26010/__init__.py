"""A model's training step on the SW26010 model: its results, and the time that every layer takes."""

from worker.sw26010.model import ProcessorModel
from worker.sw26010.times import LayerTime, layer_times, step_seconds

__all__ = ["LayerTime", "ProcessorModel", "layer_times", "step_seconds"]
