"""The model of a job that is simulated: its layers, what is computed again, and what its steps hold in memory."""

from __future__ import annotations

from functools import cached_property

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.model.model_defaults import smallest_size
from taihu.core.model.names import built_in_data
from taihu.simulation.compute import Segments
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Model, build_model
from taihu.worker.engine.base.layer import Shape
from taihu.worker.fc.connected import Spreadable, spreadable
from taihu.worker.training.objective import objective
from taihu.worker.training.planned_memory import spread_layers
from taihu.worker.training.step_memory import StepMemory


class DescribedModel:
    """The model of `job`, which is made when it is first asked about, and not bound to memory.

    No data are made or read where their shape is known.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._steps: dict[tuple[object, ...], StepMemory] = {}
        self._segments: dict[tuple[str, int | None], Segments] = {}

    def build(self) -> Model:
        """The model anew."""
        shape, outputs = self._shape
        return build_model(self._job.model.name, shape, outputs)

    @cached_property
    def model(self) -> Model:
        """The model, to be looked at."""
        return self.build()

    @cached_property
    def spreadable(self) -> Spreadable:
        """The layers that may be spread over workers."""
        return spreadable(self.model)

    def check(self, layout: Layout, setting: str) -> None:
        """Raise ConfigError unless it has the layers of `layout`, which a run has measured; `setting` needs them."""
        if not self.is_of(layout):
            own = self.model.layout
            raise ConfigError(
                f"{setting}: the profile has {len(layout.layers)} layers with {layout.elements:,} parameters, the "
                f"job's model {len(own.layers)} with {own.elements:,}; give the job that was measured"
            )

    def is_of(self, layout: Layout) -> bool:
        """Whether its layers have as many parameters as those of `layout`, which a run has measured."""
        own, others = ([layer.elements for layer in each.layers] for each in (self.model.layout, layout))
        return own == others

    def run_again(self, recompute: str, segments: int | None) -> Segments:
        """The segments whose forward is run again with these settings."""
        if recompute == "none":
            return ()
        key = recompute, segments
        if key not in self._segments:
            model = self.build()
            model.recompute(segments, spill=recompute == "spill")
            self._segments[key] = model.run_again
        return self._segments[key]

    def step_bytes(self, job: Job) -> tuple[int, int]:
        """Bytes of a worker's activations and of its batches, for a job that differs in how it runs alone."""
        spread = spread_layers(job, self.spreadable)
        key = job.train.recompute, spread, job.world.workers if spread else 0
        if key not in self._steps:
            self._steps[key] = StepMemory(job, self.build, spread)
        steps = self._steps[key]
        return steps.activation_bytes(job.train.batch), steps.batch_bytes(job.train.batch)

    @cached_property
    def _shape(self) -> tuple[Shape, int]:
        """The shape of an input, and the number of outputs."""
        name, settings = self._job.model.name, self._job.data
        known = built_in_data(settings.name)
        if known is not None and known.shape:
            height, width, channels = known.shape
            height, width = settings.size or smallest_size(name, known.shape) or (height, width)
            return (height, width, channels), known.classes
        data = load_dataset(settings, name)
        _, outputs = objective(self._job.train, data)
        return data.input_shape, outputs
