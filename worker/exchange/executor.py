"""The one executor of what the step protocol decides: for threads, and for a virtual clock.

Inputs of the training loop and of the network go to the protocol, and the actions that it returns are carried out
where they say. What waits is a generator of `Wait`: a worker blocks in each, a simulated one goes on when its clock
has come there. No threads, clocks or memory of its own (docs/adr/0085).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import StaleError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.groups import group_bounds
from taihu.core.trace import Tracer
from taihu.core.wire.frames.headers import At
from taihu.worker.exchange.base.route import Arrived, Carrier, Updated
from taihu.worker.exchange.ground import NOTHING, Ground, Values, Waits
from taihu.worker.exchange.step_actions import (
    Action,
    Agree,
    Apply,
    Ask,
    Cancel,
    Done,
    Drop,
    DropAll,
    Place,
    Push,
    Release,
    Widen,
)
from taihu.worker.exchange.step_parameters import Reading
from taihu.worker.exchange.step_protocol import StepProtocol
from taihu.worker.exchange.step_rules import Rules
from taihu.worker.exchange.times import GroupTimes


class Executor:
    """Gives the protocol its inputs, and carries out what it says.

    Inputs of the training loop are all but `updated`, `arrived` and `applied`, which are the network's: those of a
    route. Ordering and ownership are those of `taihu.worker.exchange.shell.Exchange`.

    Args:
        plan: the first one.
        rules: of the steps.
        protocol: decides.
        ground: that work runs on.
        make: what carries the plan's groups, and what touches their values; the first one tells this executor.
        now: seconds of the clock of `times`.
        tracer: gets an entry for each fetch.

    Attributes:
        left: groups of the step that have begun and not ended.
        times: of each group of the step.
        plan: the present one.
    """

    def __init__(
        self,
        plan: Plan,
        rules: Rules,
        protocol: StepProtocol,
        ground: Ground,
        make: Callable[[Executor], tuple[Carrier, Values]],
        *,
        now: Callable[[], float],
        tracer: Tracer,
    ) -> None:
        self.plan = plan
        self.protocol = protocol
        self.left = 0
        self.times: list[GroupTimes] = []
        self.rules = rules
        self._ground = ground
        self._now = now
        self._tracer = tracer
        self._is_agreeing = False
        self._sizes: list[int] = []
        # The step that reads a group which was asked for, and when it was.
        self._asked: dict[int, tuple[int, float]] = {}
        self._route, self._values = make(self)
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """Go on by a plan, which the route has; every group has ended.

        Raises:
            ExchangeError: something is under way.
        """
        self.plan = plan
        self._sizes = [stop - start for start, stop in group_bounds(plan.layout, plan.groups)]
        self._asked.clear()
        self.renew_times()
        parts = [self._route.parts(group) for group in range(len(self._sizes))]
        self._carry_out(self._told(partial(self.protocol.adopt, plan.version, self._sizes, parts)))

    def renew_times(self) -> None:
        """Nothing has been sent or answered."""
        self.times = [GroupTimes(elements) for elements in self._sizes]

    def begin(
        self,
        step: int,
        attempt: int = 0,
        rates: Sequence[float] | None = None,
        layer_rates: NDArray[np.float64] | None = None,
    ) -> None:
        """Start step `step` (from 1); every group of the step before has been waited for.

        `rates` are those of a script's optimizer that servers carry out, one for each parameter group, the same on
        all workers; one that has nothing to say gives `()`. `layer_rates`, shape (layers,), are those by which a
        script's optimizer updates each layer, where what is held back of it follows them; -1 where that is not known.

        A step that was aborted begins again with a higher `attempt`; attempts never fall, so that a lower one stands
        for the present one.

        Raises:
            ExchangeError: the step before has not ended, or this one began already.
            RunError: gradients do not fit into fp16, however small the loss is made.
        """
        self._ground.settle()
        with self._ground.lock:
            actions = self.protocol.begin(step, attempt)
            self.left = len(self._sizes)
            self.renew_times()
        self._carry_out(actions)
        self._route.begin(self.protocol.at)
        if rates is not None or self._values.selects:
            self._values.begin(self.protocol.at, rates, layer_rates)

    def push(self, group: int) -> Waits:
        """Send the group's gradients; waits for nobody unless workers have to agree whether to skip the step."""
        fits = not self._values.narrows or self._values.narrow(group)
        self.times[group].ready_s = self._now()
        self._carry_out(self._told(partial(self.protocol.ready, group, fits=fits)))
        return self._agreement(group) if self._is_agreeing else NOTHING

    def _agreement(self, group: int) -> Waits:
        yield lambda: not self._is_agreeing, group

    def leave_out(self, group: int) -> None:
        """Exchange nothing of the group in this step, as all workers do: its gradients stay as they are here.

        Raises:
            ExchangeError: it was pushed, or groups of a step go together.
        """
        self._carry_out(self._told(partial(self.protocol.leave_out, group)))

    def complete(self, group: int) -> Waits:
        """Until the group that was pushed has been summed and updated by all."""
        yield partial(self.protocol.is_complete, group), group

    def wait(self, group: int) -> Waits:
        """Until the group's updated parameters are there; groups are read in forward order."""
        if self.rules.fetches:
            yield from self._turn(self.protocol.parameters.forward_reading(group))
        else:
            yield partial(self.protocol.is_complete, group), group
        if self._values.read is not None:
            self._values.read(group, self.protocol.at.step)

    def recall(self, group: int, *, ahead: bool = True) -> Waits:
        """Until the group's parameters, which are complete, are there.

        With `ahead` groups are recalled in backward order, so that it is known which come next.
        """
        if self.rules.fetches:
            yield from self._turn(self.protocol.parameters.backward_reading(group, ahead=ahead))

    def recall_alone(self, group: int) -> Waits:
        """As `recall`, in a backward that belongs to no step: what there is room for stays, nothing comes ahead."""
        if self.rules.fetches:
            yield from self._turn(self.protocol.parameters.lone_reading(group))

    def hold(self, group: int) -> None:
        """Keep the group's parameters, which are there, until `free`, `push` or `adopt`."""
        self._carry_out(self._told(partial(self.protocol.parameters.hold, group)))

    def free(self, group: int) -> None:
        """Have the group's parameters stay no longer than others do; it need not be held."""
        self._carry_out(self._told(partial(self.protocol.parameters.free, group)))

    def prepare(self, group: int) -> Waits:
        """Until backward may read the group's parameters and write its gradients."""
        return self._prepared(group) if self.rules.drops_gradients or self.rules.fetches else NOTHING

    def _prepared(self, group: int) -> Waits:
        if self.rules.drops_gradients:
            yield partial(self.protocol.may_write, group), group
            self._told(partial(self.protocol.write, group))
        yield from self.recall(group)

    def make_room(self, group: int) -> Waits:
        """Until the group's gradients may be written, and pushed unless others are read before.

        What is on its way of its parameters comes first: behind the push it would pass for what the push brings.
        """
        if self.rules.drops_gradients:
            may_write, is_quiet = self.protocol.may_write, self.protocol.parameters.is_quiet
            yield lambda: may_write(group) and is_quiet(group), group
            self._told(partial(self.protocol.write, group))

    def abort(self, step: int) -> None:
        """Give up the present attempt at `step`, as all workers do; what it brought into the parameters stays.

        Raises:
            ExchangeError: another step is under way.
        """
        self._carry_out(self._told(partial(self.protocol.abort, step)))

    def updated(self, part: Updated) -> None:
        """One part of a pushed group has been summed and updated."""
        with suppress(StaleError), self._ground.lock:
            actions = self.protocol.updated(part.group, part.at, skipped=part.skipped)
            self.times[part.group].updated(part.sent_bytes, part.received_bytes, part.completed_s)
            if actions:
                self._hand_on(actions)

    def arrived(self, part: Arrived) -> None:
        """One part of a group's parameters has come."""
        with suppress(StaleError), self._ground.lock:
            actions = self.protocol.parameters.arrived(part.group, part.attempt)
            self.times[part.group].fetched(part.sent_bytes, part.received_bytes)
            self._carry_out(actions, is_loop=False)
            if self.protocol.parameters.may_read(part.group):
                self._trace_fetch(part.group)
                self._ground.changed()

    def applied(self, at: At) -> None:
        """All groups have been updated together."""
        with suppress(StaleError), self._ground.lock:
            self._hand_on(self.protocol.applied(at))

    def later(self, at: At, task: Callable[[], None]) -> None:
        """Carry `task` out on the exchange's own thread, unless `at` has been given up by then."""
        self._ground.later(partial(self._if_current, at, task))

    def _if_current(self, at: At, task: Callable[[], None]) -> None:
        with self._ground.lock:
            is_current = self.protocol.is_current(at)
        if is_current:
            task()

    def _turn(self, reading: Reading) -> Waits:
        parameters = self.protocol.parameters
        yield partial(parameters.may_turn, reading), reading.group
        self._carry_out(self._told(partial(parameters.turn, reading)))
        yield partial(parameters.may_read, reading.group), reading.group

    def _told(self, tell: Callable[[], Sequence[Action]]) -> Sequence[Action]:
        """Give the protocol an input of the training loop; returns what is to be done."""
        with self._ground.lock:
            actions = tell()
            self._ground.changed()
        return actions

    def _hand_on(self, actions: Sequence[Action]) -> None:
        """Carry out what the network caused, before anybody sees that it has; the lock is held."""
        self._carry_out(actions, is_loop=False)
        self._ground.changed()

    def _carry_out(self, actions: Sequence[Action], *, is_loop: bool = True) -> None:
        """Carry out actions in their order, each where it says."""
        for action in actions:
            place = action.place
            if place is Place.BOOK and is_loop:
                with self._ground.lock:
                    self._keep_book(action)
            elif place is Place.BOOK:
                self._keep_book(action)
            elif is_loop and place is not Place.OWN:
                self._work(action)
            else:
                self._ground.later(partial(self._work, action))

    def _keep_book(self, action: Action) -> None:
        """Carry out what belongs under the lock; the network's inputs hold it already."""
        match action:
            case Done(group, skipped):
                self.times[group].done(self._now(), skipped=skipped)
                self.left -= 1
                if not self.left and self._values.ended is not None:
                    self._values.ended(self.protocol.at.step)
            case Release(group):
                self._values.release(group)
            case Drop(group):
                self._values.drop(group)
            case DropAll():
                self._values.drop_all()

    def _work(self, action: Action) -> None:
        match action:
            case Push(group, skipped):
                self._push(group, skipped=skipped)
            case Ask(group, step):
                self._asked[group] = step + 1, self._now()
                self._route.fetch(group, step)
            case Widen(group):
                self._values.widen(group, partial(self._widened, group))
            case Apply(at):
                self._if_current(at, partial(self._route.apply, at, self.protocol.loss_scale))
            case Agree(overflowed):
                self._is_agreeing = True
                self._values.agree(self.protocol.at, self._agreed, overflowed=overflowed)
            case Cancel(at):
                self._values.cancel(at)

    def _push(self, group: int, *, skipped: bool) -> None:
        times, values = self.times[group], self._values
        if values.selects and values.select(group, self.protocol.at, times):
            return
        if values.pushing is not None:
            values.pushing(group, self.protocol.at)
        times.submitted(self._now())
        times.sent(self._route.send(group, loss_scale=self.protocol.loss_scale, skipped=skipped))

    def _agreed(self, skipped: bool) -> None:
        self._carry_out(self._told(partial(self.protocol.agreed, skipped=skipped)))
        with self._ground.lock:
            self._is_agreeing = False
            self._ground.changed()

    def _widened(self, group: int) -> None:
        with self._ground.lock:
            self._hand_on(self.protocol.parameters.widened(group))
        self._trace_fetch(group)

    def _trace_fetch(self, group: int) -> None:
        step, asked_s = self._asked.pop(group, (0, 0.0))
        if step and self._tracer.enabled:
            self._tracer.add("fetch", "fetch", asked_s, self._now(), step=step, group=group)
