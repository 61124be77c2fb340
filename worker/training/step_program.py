"""A step of training, written once: reads, waits and pushes around what is computed, and its record. Pure.

Whoever computes calls these in the order of forward and backward: the hooks of a model on a worker, which block in
waits (`Trainer`), and the simulator, which puts seconds on its clock (`taihu.simulation.worker`). See docs/adr/0085.
"""

from __future__ import annotations

from collections.abc import Callable

from taihu.core.trace import Tracer
from taihu.worker.exchange.executor import Executor
from taihu.worker.exchange.ground import Waits
from taihu.worker.training.calibration import Schedule
from taihu.worker.training.step_driver import LayerProgram
from taihu.worker.training.step_record import StepRecord

_SHORTEST_TRACED_WAIT_S = 20e-6


class StepProgram:
    """The steps of one worker.

    A step is `start`; `read` before the forward of each layer; `forwarded` and `begin`; `prepare` before the backward
    of each layer, `ready` after it; `end`. A step that is replayed is begun before its forward.

    Args:
        steps: has adopted a plan.
        measuring: says which steps are exchanged one group at a time, and which are ordinary ones.
        now: seconds of the clock.
        tracer: gets forward, backward and the waits of each step.
        on_move: called behind each wait.

    Attributes:
        layers: drives the exchange by layers.
        record: of the step that has started last.
    """

    record: StepRecord

    def __init__(
        self,
        steps: Executor,
        measuring: Schedule,
        now: Callable[[], float],
        tracer: Tracer,
        on_move: Callable[[], None] = lambda: None,
    ) -> None:
        self.layers = LayerProgram(steps, self.timed)
        self.read, self.prepare, self.read_again = self.layers.read, self.layers.prepare, self.layers.read_again
        self._steps = steps
        self._measuring = measuring
        self._now = now
        self._tracer = tracer
        self._on_move = on_move
        self._is_open = False

    def start(self, step: int) -> StepRecord:
        """Step `step` starts with its forward; returns the record of it."""
        rules = self._steps.rules
        # What is updated together is never exchanged group by group.
        serial = self._measuring.is_serial(step) and not (rules.holds or rules.clips)
        self.record = StepRecord(step, serial, self._measuring.is_steady(step), self._now())
        self._is_open = True
        return self.record

    def forwarded(self) -> None:
        """The last forward of the step is over."""
        self.record.forward_end_s = self._now()
        self.record.waited_in_forward_s = self.record.waited_s

    def begin(self, attempt: int = 0) -> None:
        """The exchange of the step begins."""
        self.layers.begin(self.record.step, attempt=attempt, one_by_one=self.record.serial)
        self.record.times = self._steps.times

    def ready(self, layer: int, ago_s: float = 0.0) -> Waits:
        """The gradients of a layer have been complete for so many seconds."""
        self.record.ready_s.append(self._now() - self.record.waited_in_backward_s - ago_s)
        return self.layers.ready(layer)

    def end(self) -> Waits:
        """Backward is over; the step ends when nothing is left of it to be exchanged one by one."""
        record = self.record
        record.backward_end_s = self._now()
        yield from self.layers.end_backward()
        record.end_s = self._now()
        self._is_open = False
        self._tracer.add("compute", "forward", record.start_s, record.forward_end_s, step=record.step)
        self._tracer.add("compute", "backward", record.forward_end_s, record.backward_end_s, step=record.step)

    def timed(self, waits: Waits, group: int | None) -> Waits:
        """The same waits; notes how long they took in the step that is under way."""
        start = self._now()
        yield from waits
        stop = self._now()
        self._on_move()
        if not self._is_open:
            return
        record = self.record
        record.waited_s += stop - start
        if record.forward_end_s and not record.backward_end_s:
            record.waited_in_backward_s += stop - start
        if stop - start > _SHORTEST_TRACED_WAIT_S:
            self._tracer.add("compute", "wait", start, stop, step=record.step, group=group)
