"""The instants of one step, and what follows from them once its exchange has ended: a pure object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taihu.worker.exchange.times import GroupTimes
from taihu.worker.training.progress import StepSample

if TYPE_CHECKING:
    # Of the processor model, which most workers do not need: it takes a while to import.
    from taihu.worker.sw26010 import ModelledStep


@dataclass
class StepRecord:
    """Notes of the training loop on one step; instants in seconds of this worker's clock.

    Attributes:
        step: its number, from 1.
        serial: whether its groups were exchanged one at a time, to measure them.
        steady: whether it counts as an ordinary step.
        start_s: the step began.
        forward_end_s: the loss was known.
        backward_end_s: the last gradient was there.
        end_s: the compute thread went on to the next step.
        waited_in_forward_s, waited_in_backward_s, waited_s: seconds spent waiting for others, in all the last.
        end_waited_s: seconds spent waiting for others in an end of the model that is spread over the workers.
        ready_s: when the gradient of each layer was complete, less what was waited in backward until then.
        times: of each group, once all answers are there.
        path: what values took.
        loss_scale: what its loss was multiplied by.
        skipped_steps: how many steps until then changed nothing, because their gradients overflowed.
        modelled: what forward and backward take on the processor that is planned for, where that is another one.
    """

    step: int
    serial: bool
    steady: bool
    start_s: float
    loss: float = 0.0
    forward_end_s: float = 0.0
    backward_end_s: float = 0.0
    end_s: float = 0.0
    waited_in_forward_s: float = 0.0
    waited_in_backward_s: float = 0.0
    waited_s: float = 0.0
    end_waited_s: float = 0.0
    ready_s: list[float] = field(default_factory=list)
    times: Sequence[GroupTimes] = ()
    path: str = ""
    loss_scale: float = 1.0
    skipped_steps: int = 0
    modelled: ModelledStep | None = None

    @property
    def forward_seconds(self) -> float:
        """Everything before backward, without waiting, or as modelled."""
        if self.modelled is not None:
            return self.modelled.forward_seconds
        return self.forward_end_s - self.start_s - self.waited_in_forward_s

    @property
    def backward_seconds(self) -> list[float]:
        """For each layer in backward order, the time since the layer before was complete, or as modelled."""
        if self.modelled is not None:
            return list(self.modelled.backward_seconds)
        starts = [self.forward_end_s, *self.ready_s[:-1]]
        return [stop - start for start, stop in zip(starts, self.ready_s, strict=True)]

    def sample(self) -> StepSample:
        """The step in numbers, all of them measured; its exchange has ended."""
        seconds = self.end_s - self.start_s
        elements = sum(times.elements for times in self.times)
        first = min((times.ready_s for times in self.times), default=0.0)
        last = max((times.answered_s for times in self.times), default=0.0)
        compress = sum(times.compress_s for times in self.times)
        submitted = max((times.submitted_s for times in self.times), default=0.0)
        return StepSample(
            loss=self.loss,
            step_seconds=seconds,
            compute_seconds=seconds - self.waited_s,
            compress_seconds=compress,
            compress_wait_seconds=min(compress, max(0.0, submitted - self.backward_end_s)),
            exchange_seconds=max(0.0, last - first),
            wait_seconds=self.waited_s,
            sent_bytes=sum(times.bytes_up + times.fetch_bytes_up for times in self.times),
            received_bytes=sum(times.bytes_down + times.fetch_bytes_down for times in self.times),
            selected_ratio=sum(times.selected for times in self.times) / elements if elements else 1.0,
            steady=self.steady,
        )
