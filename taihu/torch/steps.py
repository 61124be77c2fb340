"""Backward passes as the steps of an exchange: each brings the mean gradients of all workers, or an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from allreduce.communicator import Communicator
from taihu.errors import ConfigError, RunError
from taihu.job import Job
from taihu.layout import Layout
from taihu.torch.gradients import GradientArena
from taihu.torch.layer_steps import LayerSteps
from taihu.torch.live import LiveParameters
from taihu.torch.order import ORDER, order_of_state, state_in_order, whole_order, with_layers
from taihu.torch.reports import Reports
from taihu.torch.server_updates import ServerUpdates
from taihu.torch.turns import Brought, Turns
from taihu.wire.clock import Clock, SystemClock
from worker.session import Session
from worker.training.calibration import Measuring
from worker.training.step_driver import Wait
from worker.training.step_record import StepRecord

__all__ = ["BackwardSteps", "Open"]

Open = Callable[[Sequence[int], Layout, Sequence[torch.nn.Parameter]], tuple[GradientArena, Session]]
"""Takes the order in which parameters came, layout and parameters in it; returns gradients and the open exchange."""


class BackwardSteps:
    """Drives an exchange by what autograd tells of parameters; the thread that calls backward does all of it.

    The exchange is opened at the end of the first backward whose gradients are exchanged, when it is known in which
    order they come, and takes all of them then. Parameters have numbers, their positions among all that were added;
    layers are those of the exchange's layout.

    Args:
        job: of the run.
        open_exchange: opens it; all workers call it together.
        reports: are told of steps and plans.
        agree: called with an order, returns that of worker 0; all workers call it together.
        communicator: between the workers.
        waits: called with whether this worker waits for others from now on.
        updates: of the servers, where these update: parameters come back then, while the script goes on.
    """

    def __init__(
        self,
        job: Job,
        open_exchange: Open,
        reports: Reports,
        *,
        agree: Callable[[Sequence[int]], tuple[int, ...]],
        communicator: Communicator,
        waits: Callable[[bool], None],
        updates: ServerUpdates | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._job = job
        self._layout = Layout(())
        self._parameters: list[torch.nn.Parameter] = []
        # Of each parameter the number of its optimizer.
        self._owners: list[int] = []
        self._open_exchange = open_exchange
        self._reports = reports
        self._agree = agree
        self._communicator = communicator
        self._waits = waits
        self.updates = updates
        self._clock = clock or SystemClock()
        self._measuring = Measuring(job.exchange.calibration_steps, job.exchange.replan_every)
        self.step = 0
        """The number of backward passes whose gradients were exchanged."""
        self.optimizers = 0
        """The number of optimizers whose parameters were added."""
        self.adds_up: frozenset[int] = frozenset()
        """The optimizers whose gradients are added up here, and not exchanged, in the next backward."""
        self.is_joined = False
        """Whether workers may have different numbers of backwards, and tell each other of one before each."""
        self._own = 0
        self._rates: Sequence[float] | None = None
        self._turns: Turns | None = None
        self._layers: LayerSteps | None = None
        self._order: tuple[int, ...] = ()
        self._layer_of: dict[int, int] = {}
        # A state of compression that was loaded before there was an exchange.
        self._loaded: dict[str, NDArray[Any]] = {}
        self._record: StepRecord | None = None
        # Numbers of the parameters whose gradients are complete in this backward, as they came.
        self._came: dict[int, None] = {}
        # The step whose updates may still be on their way, and the groups that nobody has read since.
        self._open: StepRecord | None = None
        self._unread: set[int] = set()
        self._waited_in_forward_s = 0.0
        self._start_s = self._forward_end_s = self._clock.now()
        # Of the parameters that are here, where they do not stay.
        self._live: LiveParameters | None = None
        if updates is not None:
            updates.watch(self.read, self.settle, self if job.zero == 3 else None)

    def add(self, layout: Layout, parameters: Sequence[torch.nn.Parameter]) -> range:
        """Exchange the gradients of one more optimizer's parameters; returns their numbers.

        Args:
            layout: a layer for each of them, the last one of the model first.
            parameters: in this order.

        Raises:
            ConfigError: another optimizer has one of them, too.
            RunError: the first backward has begun.
        """
        if self._turns is not None:
            raise RunError(
                "an optimizer comes behind the first backward: give all of them to DistributedOptimizer before it"
            )
        known = set(map(id, self._parameters))
        for layer, parameter in zip(layout.layers, parameters, strict=True):
            if id(parameter) in known:
                raise ConfigError(f"{layer.name} is a parameter of another optimizer, too: give it to one of them")
        numbers = range(len(self._parameters), len(self._parameters) + len(parameters))
        self._layout = Layout((*self._layout.layers, *layout.layers))
        self._parameters += parameters
        self._owners += [self.optimizers] * len(parameters)
        self.optimizers += 1
        for number, parameter in zip(numbers, parameters, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(self._ready, number))
            if self.updates is not None:
                parameter.register_hook(partial(self._accumulates, number))
        return numbers

    def state(self) -> dict[str, NDArray[Any]]:
        """The live state of compression here, and its `ORDER`; empty where nothing is compressed."""
        if self._layers is None:
            return self._loaded
        compression = self._layers.exchange.compression
        return {} if compression is None else {**compression.arrays(), ORDER: np.array(self._order, dtype=np.int64)}

    def resume(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, from the first backward on where there was none yet.

        Raises:
            ConfigError: it belongs to other parameters.
        """
        if self._job.compression.method == "none":
            return
        if self._layers is None:
            order_of_state(state, self._layout)
            self._loaded = {name: array.copy() for name, array in state.items()}
            return
        compression = self._layers.exchange.compression
        assert compression is not None  # noqa: S101
        compression.resume(state_in_order(state, self._layout, self._order))

    def begins(self, numbers: Iterable[int]) -> None:
        """A forward begins: gradients of parameters `numbers` that it leads to are to be added to the arena."""
        if self.updates is None and self._layers is not None:
            self._layers.gradients.bind(map(self._layer_of.__getitem__, numbers))

    def forwarded(self) -> None:
        """A forward has ended, most likely the last one before backward."""
        self._forward_end_s = self._clock.now()

    def read(self, numbers: Sequence[int]) -> None:
        """Return when the updated parameters `numbers` are here, which a module is about to read."""
        assert self.updates is not None  # noqa: S101
        if self._record is not None:
            return  # what is computed again in backward has been read, and is pushed after that
        for number in numbers:
            if self._layers is not None:
                layer = self._layer_of[number]
                group = self._layers.group_of(layer)
                if group in self._unread:
                    self._layers.read(layer)
                    self._unread.discard(group)
            self.updates.read(number)

    def use(self, user: object, numbers: Sequence[int]) -> None:
        """Return when parameters `numbers` are here, to stay until `leave(user)`, where they do not stay as it is."""
        if self._live is None:
            self.read(numbers)
            return
        assert self.updates is not None  # noqa: S101
        self._live.use(user, [self._layer_of[number] for number in numbers])
        for number in numbers:
            self.updates.read(number)

    def leave(self, user: object) -> None:
        """`user`, who may have used nothing, uses nothing any more."""
        if self._live is not None:
            self._live.leave(user)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """In the block all parameters are here, and those of the last step."""
        self.settle()
        block = object()
        # As a forward reads them.
        self.use(block, sorted(self._layer_of, key=self._layer_of.__getitem__, reverse=True))
        try:
            yield
        finally:
            self.leave(block)

    def settle(self) -> None:
        """Return when all parameters are those of the last step, where servers update them."""
        if self.updates is None:
            return
        self._finish_last()
        if self._record is None:
            for number in range(len(self._parameters)):
                self.updates.read(number)

    def _finish_last(self) -> None:
        """Return when nothing of the step before is under way."""
        if self._open is not None:
            record, self._open = self._open, None
            assert self._layers is not None  # noqa: S101
            self._layers.finish()
            self._unread.clear()
            plan = self._layers.exchange.plan
            self._layers.close(record)
            if self._live is not None and self._layers.exchange.plan is not plan:
                self._live.regroup()

    def stepped(self) -> None:
        """The script's optimizer steps, where servers have the gradients already."""
        assert self.updates is not None  # noqa: S101
        self.updates.stepped()
        if self._live is None:
            self.read(self.updates.at_step)

    def follow(self, update: Callable[[], None]) -> int:
        """Take part in the backwards of workers that have more, with gradients of zeros; `update` follows each.

        Returns:
            The worker that has had most of its own, the first of several.
        """
        while self._sums(0.0).any():
            self.settle()
            for parameter in self._parameters:
                parameter.grad = None
            self._begin(follows=True)
            self._end()
            update()
        return int(np.argmax(self._sums(self._own)))

    def _sums(self, own: float) -> NDArray[np.float32]:
        """Numbers of all workers by rank, of which `own` is this one's."""
        numbers = np.zeros(self._communicator.size, dtype=np.float32)
        numbers[self._communicator.rank] = own
        with self._waiting():
            self._communicator.allreduce(numbers)
        return numbers

    def _accumulates(self, number: int, _: torch.Tensor) -> None:
        """Autograd is about to add to the gradient of a parameter, in memory that may be on its way yet."""
        self._finish_last()
        if self._record is not None and number in self._came:
            raise self._twice(number)
        if self._layers is not None:
            self._layers.gradients.bind_one(self._layer_of[number])

    def _ready(self, number: int, _: torch.Tensor) -> None:
        """The gradient of a parameter is complete for this backward."""
        if self.updates is not None:
            self.updates.brought(number)
        if self._owners[number] in self.adds_up:
            return
        record = self._record or self._begin_in_backward()
        if number in self._came:
            raise self._twice(number)
        self._came[number] = None
        if self._layers is not None:
            self._layers.take(self._layer_of[number])
            self._layers.push(record)

    def _twice(self, number: int) -> RunError:
        name = self._layout.layers[number].name
        return RunError(f"step {self.step}: {name} has brought its gradient twice in one backward")

    def _begin_in_backward(self) -> StepRecord:
        if self.is_joined:
            self._sums(1.0)
            self._own += 1
        record = self._begin()
        # As DistributedDataParallel does: gradients are those of all workers when backward returns.
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return record

    def _begin(self, *, follows: bool = False) -> StepRecord:
        if self._live is not None and self._live.in_use:
            raise RunError(
                "backward began in a block of optimizer.gathered(), or while the model is being called: parameters "
                "change by it, and leave; call it behind"
            )
        self._rates = None if self.updates is None else () if follows else self.updates.rates()
        self.step += 1
        turns = self._turns = self._turns or Turns(self.optimizers)
        turns.begin()
        number = turns.counted + 1
        serial = turns.expects_all and self._measuring.is_serial(number)
        steady = not serial and self._measuring.is_steady(number)
        record = StepRecord(self.step, serial, steady, self._start_s)
        record.forward_end_s = max(self._start_s, self._forward_end_s)
        record.waited_s = record.waited_in_forward_s = self._waited_in_forward_s
        self._waited_in_forward_s = 0.0
        self._record = record
        self._came.clear()
        if self._layers is not None:
            self._layers.begin(record, self._rates)
        return record

    def _begin_exchange(self, record: StepRecord) -> LayerSteps:
        """Open the exchange, and have all gradients of the first backward in it."""
        count = len(self._parameters)
        # A run that goes on keeps its order, and with it the thresholds.
        came: Iterable[int] = order_of_state(self._loaded, self._layout) if self._loaded else self._came
        with self._waiting():
            self._order = self._agree(whole_order(came, count))
        self._layer_of = {number: layer for layer, number in enumerate(self._order)}
        in_order = [self._parameters[number] for number in self._order]
        gradients, session = self._open_exchange(self._order, with_layers(self._layout, self._order), in_order)
        assert self._turns is not None  # noqa: S101
        layers = self._layers = LayerSteps(
            self._job,
            gradients,
            session,
            self._reports,
            self._measuring,
            owners=[self._owners[number] for number in self._order],
            turns=self._turns,
            timed=self._wait,
            waits=self._waits,
            clock=self._clock,
        )
        if self._loaded:
            loaded, self._loaded = self._loaded, {}
            self.resume(loaded)
        layers.begin(record, self._rates)
        for number in self._came:
            layers.take(self._layer_of[number])
        if self._job.zero == 3:
            layout = with_layers(self._layout, self._order)
            self._live = LiveParameters(layout, in_order, layers)
        return layers

    def _end(self) -> None:
        """Backward is over: return when all gradients are the means of all workers, unless servers update by them."""
        record = self._record
        assert record is not None  # noqa: S101
        layers = self._layers or self._begin_exchange(record)
        layers.end(record, self._brought())
        if self.updates is not None:
            self.updates.pushed()
            self._unread = set(range(len(layers.exchange.plan.groups)))
            self._record, self._open = None, record
            record.end_s = self._start_s = self._clock.now()
            return
        layers.finish()
        layers.give()
        self._record = None
        record.end_s = self._start_s = self._clock.now()
        layers.close(record)

    def _brought(self) -> Brought:
        """The optimizers that some worker has gradients of in this backward."""
        if self.optimizers == 1:
            return frozenset((0,))
        has_some = np.zeros(self.optimizers, dtype=np.float32)
        has_some[[self._owners[number] for number in self._came]] = 1.0
        with self._waiting():
            self._communicator.allreduce(has_some)
        return frozenset(np.flatnonzero(has_some).tolist())

    def _wait(self, wait: Wait, group: int) -> None:
        with self._waiting():
            wait(group)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """In the block this worker waits for others; how long is measured."""
        self._waits(True)
        start = self._clock.now()
        try:
            yield
        finally:
            self._waits(False)
        waited_s = self._clock.now() - start
        if self._record is not None:
            self._record.waited_in_backward_s += waited_s
        else:
            self._waited_in_forward_s += waited_s
