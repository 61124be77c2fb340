"""Backward passes as the steps of an exchange: each brings the mean gradients of all workers, or an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.allreduce.small_sums import SmallSums
from taihu.core.base.errors import RunError, TaihuError
from taihu.core.coordination.membership.hashes import checksums_in_words
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.system.memory import collect_garbage
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.torch.gradients.coded import CodedGradients, Codes
from taihu.torch.gradients.exchanged import ExchangedSet, Optimized, Watch
from taihu.torch.gradients.gradients import GradientArena
from taihu.torch.gradients.means import Means
from taihu.torch.gradients.order import carried_over, order_of_state, state_in_order, whole_order, with_layers
from taihu.torch.steps.attempt import Attempt
from taihu.torch.steps.joining import Joining
from taihu.torch.steps.layer_rates import LayerRates
from taihu.torch.steps.layer_steps import Helping, LayerSteps
from taihu.torch.steps.live import LiveParameters
from taihu.torch.steps.opened import LayerPlaces, Opened
from taihu.torch.steps.reports import Reports
from taihu.torch.steps.returning import Returning, refuse_within_backward
from taihu.torch.steps.roll_call import Call, Heard, RollCall, Word
from taihu.torch.steps.served import Served
from taihu.torch.steps.server_updates import ServerUpdates
from taihu.torch.steps.turns import Brought, Turns
from taihu.torch.steps.waiting import Waiting
from taihu.worker.exchange.ground import Waits
from taihu.worker.exchange.session import Session
from taihu.worker.training.calibration import Measuring, Schedule, Unmeasured
from taihu.worker.training.step_record import StepRecord

_USUAL_CHECKS: Final = 128


class Open(Protocol):
    """Opens an exchange, and closes the one before; all workers call it together."""

    def __call__(
        self, order: Sequence[int], layout: Layout, parameters: Sequence[torch.nn.Parameter]
    ) -> tuple[GradientArena | CodedGradients, Codes | None, Session]:
        """Take the order in which parameters came, layout and parameters in it; return gradients, codes, exchange."""
        ...


class Apart(Protocol):
    """Updates parameters here alone for a while."""

    @property
    def is_pending(self) -> bool:
        """Whether parameters have been updated since the last exchange."""
        ...


class BackwardSteps:
    """Drives an exchange by what autograd tells of parameters; the thread that calls backward does all of it.

    The exchange is opened at the end of the first backward whose gradients are exchanged, when it is known in which
    order they come, and takes all of them then. It is opened anew where workers train other parameters than before.
    Parameters have numbers, their positions in the exchanged set; layers are those of the exchange's layout.

    Args:
        job: of the run.
        open_exchange: opens it; all workers call it together.
        reports: are told of steps and plans.
        agree: called with an order, returns that of worker 0; all workers call it together.
        bring: has worker 0's values in tensors; all workers call it together.
        rank: of this worker.
        size: number of workers.
        sums: of all workers, for roll calls.
        helping: see `LayerSteps`.
        waits: called with whether this worker waits for others from now on.
        attempt: the pass of the script's loop, which is given up where another worker is lost.
        updates: the optimizers that servers carry out, where these update: parameters come back then, while the
            script goes on.
    """

    def __init__(
        self,
        job: Job,
        open_exchange: Open,
        reports: Reports,
        *,
        agree: Callable[[Sequence[int]], tuple[int, ...]],
        bring: Callable[[Sequence[torch.Tensor]], None],
        rank: int,
        size: int,
        sums: SmallSums,
        helping: Helping,
        waits: Callable[[bool], None],
        attempt: Attempt,
        updates: Served | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._job = job
        self._open_exchange = open_exchange
        self._reports = reports
        self._agree = agree
        self._bring = bring
        self._rank, self._size = rank, size
        self._helping = helping
        self._waits = waits
        self._attempt = attempt
        self.updates = updates
        self._clock = clock or SystemClock()
        self._measuring: Schedule = Measuring(job.exchange.calibration_steps, job.exchange.replan_every)
        self.step = 0
        """The number of backward passes whose gradients were exchanged."""
        self.adds_up: frozenset[Optimized] = frozenset()
        """The optimizers whose gradients are added up here, and not exchanged, in the next backward."""
        self.apart: list[Apart] = []
        """The local steps of optimizers that make some."""
        self.weight = 1.0
        """That of this worker's gradients in the means."""
        # A block in which workers may have different numbers of backwards, and tell each other of one before each.
        self._joining: Joining | None = None
        self._watch = Watch()
        self._means = Means()
        self._waiting = Waiting(waits, self._clock, self._has_waited)
        self._calls = RollCall(rank, size, sums, self._waiting)
        # What is exchanged, or will be when the exchange is opened; and the hooks of its parameters.
        self._set = ExchangedSet.of((), shares_groups=True)
        self._owner_of: dict[int, Optimized] = {}
        self._hooks: dict[int, torch.utils.hooks.RemovableHandle] = {}
        # Of what is trained, as it was when this backward began; whether the exchange is opened anew at its end; and
        # whether others have begun it, in a block of `join()`.
        self._digest, self._reopens, self._follows = 0, False, False
        self._rates: Sequence[float] | None = None
        self._turns: Turns | None = None
        self._opened: Opened | None = None
        # Of parameters by their identity, in a backward that all of their gradients are exchanged in as they come.
        self._layers_of_ids: Mapping[int, int] = {}
        # A state of compression that was loaded before there was an exchange.
        self._loaded: dict[str, NDArray[Any]] = {}
        self._record: StepRecord | None = None
        # Identities of the parameters whose gradients are complete in this backward, as they came.
        self._came: dict[int, None] = {}
        self._waited_in_forward_s = 0.0
        self._start_s = self._clock.now()
        self.returning = None
        if updates is not None:
            self.returning = Returning(
                updates,
                lambda: len(self._set.parameters),
                lambda: self._opened,
                lambda: self._record is not None,
                is_divided=job.stage.divides_parameters,
            )

    def add(self, optimized: Optimized, updates: ServerUpdates | None = None) -> None:
        """Exchange the gradients of one more optimizer's parameters, from the next backward on.

        One that has had some of them is not to step any more. `updates` is there where servers update.
        """
        if self.updates is not None and self.returning is not None and updates is not None:
            self.updates.add(updates)
            self.returning.watch(updates)
        names = {id(p): name for name, p in optimized.named() if id(p) in optimized.own_ids()}
        for other in self._watch.optimized:
            if shared := names.keys() & other.own_ids():
                other.retired_by = next(name for key, name in names.items() if key in shared)
        if self._opened is None:
            self._watch.optimized = [each for each in self._watch.optimized if not each.is_retired]
        self._watch.optimized.append(optimized)
        self._watch.find_others()
        if self._opened is None:
            self._set = self._wanted()
        self._hook(optimized)

    def close(self) -> None:
        """Hear of no gradients any more: parameters that stay with the script hold nothing of the run then."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def writable(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Those of some tensors that this worker may write to: not what servers hold."""
        return tensors if self.updates is None else self.updates.others(tensors)

    @property
    def _is_apart(self) -> bool:
        return any(each.is_pending for each in self.apart)

    def is_first(self, optimized: Optimized) -> bool:
        """Whether it is the first of the optimizers that are exchanged."""
        return self._watch.optimized[0] is optimized

    def state(self) -> dict[str, NDArray[Any]]:
        """The live state of compression here, and its `ORDER`; empty where nothing is compressed."""
        return self._loaded if self._opened is None else self._opened.state()

    def resume(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, from the first backward on where there was none yet.

        Raises:
            ConfigError: it belongs to other parameters.
        """
        if not self._job.compression.method.holds_back:
            return
        if self._opened is None:
            order_of_state(state, self._set.layout)
            self._loaded = {name: array.copy() for name, array in state.items()}
        elif self._opened.compression is not None:
            order = self._opened.places.order
            self._opened.compression.resume(state_in_order(state, self._set.layout, order))

    def checksums(self) -> str:
        """The checksums of all parameters with their names, as all workers must have them in the end; "" of none."""
        if self._opened is None or self.updates is not None or self._is_apart:
            return ""
        own = zip(self._set.names, map(int, self._set.checksums().tolist()), strict=True)
        return checksums_in_words(list(own)[::-1])

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """In the block all parameters are here, and those of the last step; they always are where workers update."""
        with nullcontext() if self.returning is None else self.returning.gathered():
            yield

    def settle(self) -> None:
        """Return when all parameters are those of the last step, where servers update them."""
        if self.returning is not None:
            self.returning.settle()

    def before_update(self, optimized: Optimized, *, is_asked_for: bool = False) -> None:
        """An optimizer is about to step: exchange gradients that no backward has exchanged, as all workers do.

        Args:
            optimized: the optimizer.
            is_asked_for: whether the script has said that gradients are as they are to be exchanged.

        Raises:
            RunError: backward goes on, or such a gradient may not be what is to be exchanged.
        """
        refuse_within_backward()
        if optimized.is_retired:
            raise RunError(
                f"step(): another DistributedOptimizer was made of this one's parameters, as {optimized.retired_by}: "
                "step by that one, or give each parameter to one of them"
            )
        own, ids = optimized.known()
        rest = self._means.rest(own, ids)
        if not rest:
            return
        names = {id(p): name for name, p in optimized.named()}
        for parameter in rest:
            if not parameter.requires_grad and id(parameter) in optimized.own_ids() - self._set.ids.keys():
                raise RunError(
                    f"step(): {names[id(parameter)]} is frozen and has a gradient, which is not exchanged: set it to "
                    "None"
                )
        rest = [p for p in rest if p.requires_grad or id(p) in self._set.ids]
        if not rest:
            return
        if not is_asked_for:
            self._means.check(rest, names)
        if self._job.compression.method.holds_back and len(rest) < sum(p.grad is not None for p in own):
            raise RunError(
                f"step(): the gradient of {names[id(rest[0])]} was set by hand behind a backward that has brought "
                "others, and with compression each is exchanged once: set all of them, or compression.method = 'none'"
            )
        self.exchange_now(rest)

    def updated(self, optimized: Optimized) -> None:
        """The optimizer has stepped: gradients from now on are not exchanged yet."""
        self._means.used(*optimized.known())

    def forget(self, optimized: Optimized) -> None:
        """The optimizer forgets its gradients."""
        self._means.forget(optimized.own_ids())

    def mean_of(self, value: float) -> float:
        """The mean of a number of all workers, who all call this."""
        heard = self._calls.begin(Word(Call.LOSS, self.step + 1, number=value), np.zeros(self.flags))()
        return sum(word.number for word in heard.words) / self._size

    def exchange_now(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Exchange the gradients of these, as they are, in a step of their own; all workers call this together."""
        record = self._begin()
        for parameter in parameters:
            self._came[id(parameter)] = None
            if self._opened is not None and not self._reopens:
                self._opened.steps.ready(self._opened.places.by_number[self._set.ids[id(parameter)]], record)
        self._end(record, Call.STEP)

    @property
    def is_joined(self) -> bool:
        """Whether workers may have different numbers of backwards now."""
        return self._joining is not None

    @contextmanager
    def joined(self) -> Iterator[None]:
        """In the block they may, until each calls `follow`."""
        former = self._joining
        self._joining = former or Joining(
            self._calls.sums,
            self._rank,
            self._size,
            lambda: self._set,
            lambda: self._means.local_ids,
            comes_back=self.updates is None,
        )
        try:
            yield
        finally:
            if former is None:
                self._joining.close()
            self._joining = former

    def follow(self) -> int | None:
        """Take part in the backwards of workers that have more, in a block of `joined`; nothing is updated here.

        Returns:
            The worker that has had most of its own, the first of several; None where all have had as many.
        """
        assert self._joining is not None  # noqa: S101
        # Others may wait for what this worker reports of a step behind it, before they begin the next one.
        self.settle()
        while (adds_to := self._joining.hears()) is not None:
            for owner, parameter in zip(self._set.owners, self._set.parameters, strict=True):
                if not adds_to[owner]:
                    parameter.grad = None
            self._end(self._begin(follows=True))
            self.settle()
        return self._joining.most()

    def everywhere(self) -> list[Optimized]:
        """The optimizers that are there on all workers, who call this together."""
        own = [each for each in self._watch.optimized if not each.is_retired]
        alive = np.array([float(each.optimizer is not None) for each in own])
        return [each for each, count in zip(own, self._calls.sums(alive), strict=True) if count == self._size]

    def _hook(self, optimized: Optimized) -> None:
        """Hear of the gradients of an optimizer's parameters."""
        for parameter in optimized.parameters():
            key = id(parameter)
            self._owner_of[key] = optimized
            if key not in self._hooks and parameter.requires_grad:
                self._hooks[key] = parameter.register_post_accumulate_grad_hook(self._ready)
                if self.updates is not None:
                    parameter.register_hook(partial(self._accumulates, self._set.ids[key]))

    def _accumulates(self, number: int, _: torch.Tensor) -> None:
        """Autograd is about to add to the gradient of a parameter, in memory that may be on its way yet."""
        assert self.returning is not None  # noqa: S101
        self.returning.finish_last()
        if self._record is not None and id(self._set.parameters[number]) in self._came:
            raise self._twice(number)
        self.returning.accumulates(number)

    def _ready(self, parameter: torch.nn.Parameter) -> None:
        """The gradient of a parameter is complete for this backward."""
        if self._attempt.lost is not None and self._attempt.is_given_up:
            return
        try:
            self._is_ready(parameter)
        except TaihuError as error:
            self._attempt.lose(error)

    def _is_ready(self, parameter: torch.nn.Parameter) -> None:
        key = id(parameter)
        layer = self._layers_of_ids.get(key)
        record, opened = self._record, self._opened
        if layer is None or record is None or opened is None or key in self._came:
            self._ready_as_yet(parameter)
            return
        self._came[key] = None
        if self.weight != 1.0:
            _weigh(parameter, self.weight)
        opened.steps.ready(layer, record)

    def _ready_as_yet(self, parameter: torch.nn.Parameter) -> None:
        """As `_ready`, where nothing is known of this backward, or not all is as usual."""
        key = id(parameter)
        number = self._set.ids.get(key)
        if self.updates is not None:
            assert number is not None  # noqa: S101
            self.updates.of(number).brought(number)
        if self.adds_up and self._owner_of[key] in self.adds_up:
            self._means.added_up(parameter)
            return
        record = self._record or self._begin_in_backward()
        if key in self._came:
            raise self._twice(number or 0)
        self._came[key] = None
        if self.weight != 1.0:
            _weigh(parameter, self.weight)
        if self._opened is not None and not self._reopens and number is not None:
            self._opened.steps.ready(self._opened.places.by_number[number], record)

    def _twice(self, number: int) -> RunError:
        name = self._set.layout.layers[number].name
        return RunError(f"step {self.step}: {name} has brought its gradient twice in one backward")

    def _begin_in_backward(self) -> StepRecord:
        if self._joining is not None:
            self._joining.begins()
        record = self._begin()
        # As DistributedDataParallel does: gradients are those of all workers when backward returns.
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._end, record))
        return record

    def _begin(self, *, follows: bool = False) -> StepRecord:
        if self._opened is not None and self._opened.live is not None and self._opened.live.in_use:
            raise RunError(
                "backward began in a block of optimizer.gathered(), or while the model is being called: parameters "
                "change by it, and leave; call it behind"
            )
        self._rates = None if self.updates is None else () if follows else self.updates.rates()
        self._follows = follows
        self.step += 1
        if self._opened is not None and self.updates is None:
            self._digest, self._reopens = self._watch.look()
        turns = self._known_turns()
        turns.begin()
        number = turns.counted + 1
        # What follows from other groups does not wait for its turn.
        in_turns = turns.expects_all and not self._job.compression.method.codes
        serial = in_turns and self._measuring.is_serial(number)
        steady = not serial and self._measuring.is_steady(number)
        record = StepRecord(self.step, serial, steady, self._start_s)
        # Everything until the first gradient.
        record.forward_end_s = self._clock.now()
        record.waited_s = record.waited_in_forward_s = self._waited_in_forward_s
        self._waited_in_forward_s = 0.0
        self._record = record
        self._came.clear()
        self._layers_of_ids = {}
        if self._opened is not None and not self._reopens:
            self._opened.begin(record, self._rates)
            if not self.adds_up and self.updates is None:
                self._layers_of_ids = self._opened.places.by_id
        return record

    def _known_turns(self) -> Turns:
        """The turns of the optimizers that are known when the first backward begins, or of those of a new set."""
        if self._turns is None:
            self._turns = Turns(max(len(self._set.optimized), 1))
        return self._turns

    def _wanted(self) -> ExchangedSet:
        """The set of what is to be exchanged; what was exchanged stays as long as an optimizer has it."""
        shares = not self._job.compression.method.holds_back and self.updates is None
        return ExchangedSet.of(self._watch.optimized, stays=self._set.ids, shares_groups=shares)

    def _renew_set(self) -> None:
        """Leave out optimizers that no worker has any more, and have all that the others train."""
        if len({each.was_exchanged for each in self._watch.optimized}) > 1:
            # Of optimizers that others follow: schedulers and they hold each other.
            collect_garbage()
        alive = self._calls.sums(np.array([float(not each.is_dead) for each in self._watch.optimized]))
        self._watch.optimized = [each for each, lives in zip(self._watch.optimized, alive, strict=True) if lives]
        former = self._set
        self._set = self._wanted()
        self._bring([p for p in self._set.parameters if id(p) not in former.ids])
        for key in self._hooks.keys() - self._set.ids.keys():
            self._hooks.pop(key).remove()
            self._owner_of.pop(key, None)
        turns = self._turns = Turns(len(self._watch.optimized))
        turns.begin()
        self._measuring = Unmeasured()
        self._means.keep(self._set.ids)

    def _begin_exchange(self, record: StepRecord) -> Opened:
        """Open the exchange, and have all gradients of the first backward in it."""
        former = self._opened
        # Of the parameters that it had, not of those that it is opened for.
        held_back = {} if former is None else former.state()
        if former is not None:
            self._opened = None
            self._renew_set()
        elif self.updates is None:
            self._set = self._wanted()
        exchanged = self._set
        came = [exchanged.ids[key] for key in self._came if key in exchanged.ids]
        # Nothing has told of the gradients of those that were found just now.
        unheard = [p for p in exchanged.parameters if id(p) not in self._hooks]
        self._came |= {id(p): None for p in unheard if p.grad is not None}
        for each in self._watch.optimized:
            self._hook(each)
        # A run that goes on keeps its order, and with it the thresholds.
        first: Iterable[int] = order_of_state(self._loaded, exchanged.layout) if self._loaded else came
        opened = self._opened = self._open_in_order(whole_order(first, len(exchanged.parameters)))
        self._watch.opened(exchanged)
        if self._loaded:
            loaded, self._loaded = self._loaded, {}
            self.resume(loaded)
        elif held_back and former is not None and opened.compression is not None:
            opened.compression.resume(carried_over(held_back, former.places.ranges, opened.places.ranges))
        opened.begin(record, self._rates)
        for key in self._came:
            if key in exchanged.ids:
                opened.steps.take(opened.places.by_id[key])
        return opened

    def _open_in_order(self, wanted: Sequence[int]) -> Opened:
        """Open the exchange of the set in the order that worker 0 wants."""
        exchanged = self._set
        with self._waiting:
            order = self._agree(wanted)
        in_order = [exchanged.parameters[number] for number in order]
        layout = with_layers(exchanged.layout, order)
        gradients, codes, session = self._open_exchange(order, layout, in_order)
        steps = LayerSteps(
            self._job,
            gradients,
            session,
            self._reports,
            self._measuring,
            codes=codes,
            helping=self._helping,
            owners=[exchanged.owners[number] for number in order],
            turns=self._known_turns(),
            timed=self._wait,
            waits=self._waits,
            clock=self._clock,
        )
        live = LiveParameters(layout, in_order, steps) if self._job.stage.divides_parameters else None
        places = LayerPlaces(exchanged.parameters, order, layout)
        rates = LayerRates(places.by_id, exchanged.optimized) if self._job.lowers_held_back else None
        held = session.exchange.compression if codes is None else codes.coder
        return Opened(steps, places, live, rates, held)

    def _end(self, record: StepRecord, call: Call = Call.BACKWARD) -> None:
        """Backward is over: return when all gradients are the means of all workers, unless servers update by them."""
        if not self._attempt.is_given_up:
            with self._attempt.losing():
                self._end_together(record, call)

    def _end_together(self, record: StepRecord, call: Call) -> None:
        if self.returning is not None and self.updates is not None:
            self._end_for_servers(self.returning, self.updates, record, call)
            return
        along = self._means.unchanged(self._set.parameters) if len(self._came) < len(self._set.ids) else []
        heard = self._call(call)
        opened = self._opened
        if opened is None or self._reopens:
            self._agreed(heard())
            opened = self._begin_exchange(record)
            self._reopens = False
            is_brought = self._calls.sums(self._own_flags())
            opened.steps.end(record, self._owners_of(is_brought))
        elif record.serial or len(self._set.optimized) > 1:
            is_brought = self._agreed(heard())
            opened.steps.end(record, self._owners_of(is_brought))
        else:
            opened.steps.end(record, frozenset((0,)))
            is_brought = self._agreed(heard())
        opened.steps.finish()
        order = opened.places.order
        opened.steps.give(lambda layer: bool(is_brought[order[layer]]))
        ids = self._set.ids
        self._means.brought(ids if is_brought.all() else [key for key, number in ids.items() if is_brought[number]])
        self._means.taken_along(along)
        self._record = None
        record.end_s = self._start_s = self._clock.now()
        opened.steps.close(record)

    def _end_for_servers(self, returning: Returning, updates: Served, record: StepRecord, call: Call) -> None:
        """As `_end`, where servers update: parameters come while the script goes on."""
        count = len(self._set.optimized)
        brought: Brought = frozenset(range(count))
        if count > 1 and not self._job.stage.divides_parameters:
            brought = self._brought_to(updates, self._call(call)(), record)
        opened = self._opened or self._begin_exchange(record)
        opened.steps.end(record, brought)
        if count > 1 and self._job.stage.divides_parameters:
            # Others may wait in backward for what this worker has sent just now.
            self._check_that_all_came(self._agreed(self._call(call)()))
            if self._rates:
                updates.take_turns(brought)
        returning.pushed(opened, record, brought)
        self._record = None
        record.end_s = self._start_s = self._clock.now()

    def _brought_to(self, updates: Served, heard: Heard, record: StepRecord) -> Brought:
        """The optimizers whose gradients servers get by this backward, each of which takes its turn."""
        is_brought = self._agreed(heard)
        if self._opened is None:
            # Nothing was known of parameters before.
            self._begin_exchange(record)
            is_brought = self._calls.sums(self._own_flags())
        brought = self._owners_of(is_brought)
        if self._rates:
            updates.take_turns(brought)
        self._means.forget({key for key, number in self._set.ids.items() if self._set.owners[number] in brought})
        return brought

    def _check_that_all_came(self, is_brought: NDArray[np.float64]) -> None:
        """Raise RunError unless a backward in stage 3 of ZeRO has brought gradients of all optimizers."""
        came, count = len(self._owners_of(is_brought)), len(self._set.optimized)
        if came < count:
            raise RunError(
                f"step {self.step}: backward has brought gradients of {came} of the script's {count} optimizers, and "
                "in stage 3 of ZeRO each brings those of all: set exchange.zero = 2"
            )

    @property
    def flags(self) -> int:
        """The number of flags in a roll call: one for each parameter of the exchange that is open."""
        return 0 if self._opened is None else len(self._set.parameters)

    def _own_flags(self) -> NDArray[np.float64]:
        """For each parameter whether this worker has a gradient to be exchanged, shape (n,)."""
        flags = np.zeros(self.flags)
        ids = self._set.ids
        if not len(flags):
            return flags
        if self._came.keys() >= ids.keys():
            flags[:] = 1.0
            return flags
        flags[[ids[key] for key in self._came if key in ids]] = 1.0
        if local := self._means.local(self._set.parameters):
            # What an optimizer has added up goes with what this backward has brought of it.
            owners = {self._owner_of[key] for key in self._came if key in ids}
            flags[[ids[id(p)] for p in local if self._owner_of[id(p)] in owners]] = 1.0
        return flags

    def _call(self, call: Call) -> Callable[[], Heard]:
        # What is replaced by its like has the same words, and is another exchange all the same.
        # Who follows knows nothing of what others freeze meanwhile.
        digest = 0 if self._opened is None or self._follows else self._digest ^ self._reopens
        # A set that is left is compared a last time.
        # Who follows others in a block of `join()` has their parameters at its end.
        is_apart = self._is_apart or self.is_joined
        compares = self._opened is not None and self.updates is None and not is_apart
        due = compares and (self._reopens or self._is_compared(self.step - 1))
        word = Word(call, self.step, digest, self._set.checksum() if due else 0, float(self._reopens))
        return self._calls.begin(word, self._own_flags())

    def _agreed(self, heard: Heard) -> NDArray[np.float64]:
        """The flags of all workers, if they train the same."""
        digests = {word.digest for word in heard.words} - {0}
        if len(digests) > 1 or len({word.number for word in heard.words}) > 1:
            self._calls.refuse_others(self.step, self._watch.changes())
        self._compare(heard)
        return heard.flags

    def _compare(self, heard: Heard) -> None:
        self._calls.compared(heard, self._set.names, self._set.checksums)

    def _is_compared(self, step: int) -> bool:
        """Whether all workers compare their parameters behind a step."""
        every = self._job.train.check_every
        if every is not None:
            return step % every == 0
        return step % _USUAL_CHECKS == 0 or (step < _USUAL_CHECKS and not step & (step - 1))

    def _owners_of(self, is_brought: NDArray[np.float64]) -> Brought:
        """The optimizers that some worker has gradients of in this backward."""
        if len(self._set.optimized) == 1:
            return frozenset((0,))
        return frozenset(self._set.owners[number] for number in np.flatnonzero(is_brought).tolist())

    def _wait(self, waits: Waits, group: int) -> Waits:
        with self._waiting:
            yield from waits

    def _has_waited(self, seconds: float) -> None:
        if self._record is not None:
            self._record.waited_in_backward_s += seconds
        else:
            self._waited_in_forward_s += seconds


def _weigh(parameter: torch.nn.Parameter, weight: float) -> None:
    """Have a complete gradient count for more or less than that of another worker."""
    if parameter.grad is not None:
        with torch.no_grad():
            parameter.grad.mul_(weight)
