"""This process's part in a run: joined once it is known what is exchanged, left when the script ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final
from weakref import WeakMethod

import numpy as np
import torch

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.rendezvous import Meeting, listen_for_peers
from taihu.allreduce.small_sums import SmallSums
from taihu.core.base.errors import ConfigError, RecoveringError, RunError, TaihuError
from taihu.core.base.words import one_line, ordinal
from taihu.core.compression.coding import make_coder
from taihu.core.coordination.membership.members import Progress
from taihu.core.job import Job, settled
from taihu.core.model.layout import Layout
from taihu.core.process.ending import is_due_to_others_than, log_of_script, tell
from taihu.core.process.last_will import LastWill
from taihu.core.system.memory import collect_garbage
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.frames.headers import ValueType
from taihu.torch.anew import between_workers_of, plan_anew
from taihu.torch.gradients.coded import CodedGradients, Codes
from taihu.torch.gradients.exchanged import Optimized, digest_of_tensors
from taihu.torch.gradients.gradients import GradientArena
from taihu.torch.gradients.spread import Spread, is_spread
from taihu.torch.place import RunPlace
from taihu.torch.steps.attempt import Attempt
from taihu.torch.steps.reports import Reports, options_of, replaces
from taihu.torch.steps.roll_call import Call, DisagreementError, RollCall, Word
from taihu.torch.steps.served import Served, offer, take_over
from taihu.torch.steps.server_updates import ServerUpdates
from taihu.torch.steps.steps import BackwardSteps
from taihu.worker.exchange.session import (
    Exchanged,
    Reporting,
    Session,
    exchange_after_meeting,
    exchange_by_plan,
    meet_workers,
)
from taihu.worker.fc.mover import PeerMover
from taihu.worker.memory.arenas import arenas_of
from taihu.worker.reporting.activity import Activity

_VALUES_AT_A_TIME = 1 << 22
_ASK_AGAIN_S = 0.1
_TYPES: Final = {
    ValueType.FP32: torch.float32,
    ValueType.FP16: torch.float16,
    ValueType.BF16: torch.bfloat16,
}


class World:
    """The workers that train together, of which this process is one.

    One thread calls everything, but `leave`, which the end of the process calls.

    Args:
        place: of this process.
        is_first: whether this process was in no world before.
    """

    def __init__(self, place: RunPlace, *, is_first: bool = True) -> None:
        self.job = place.job
        self.checkpoint = place.checkpoint
        self.rank = place.rank
        self.size = place.job.world.workers
        self._stack = ExitStack()
        # Of the group that the workers make: it ends where they make another one.
        self._together = ExitStack()
        # Of the script: all that it has done with others before it has kept anything.
        self._again: list[WeakMethod[Callable[[], None]]] = []
        self._meeting: Meeting | None = None
        # Of roll calls.
        self._sums: SmallSums | None = None
        self._session: Session | None = None
        self._spread: Spread | None = None
        self._steps: BackwardSteps | None = None
        # Of the exchange that is open: it is closed before another one is opened.
        self._opened = ExitStack()
        self._is_through_servers = False
        self._is_waiting = False
        # The operation of all workers that this one waits in, where it is none of backward's.
        self._waits_in = ""
        self.was_in = ""
        """The operation of all workers in which this one has waited last, in words."""
        self._log = log_of_script(os.environ)
        self.keeps_state = False
        """Whether the script keeps its state."""
        self.stays = False
        """Whether this process takes steps again, with others in the place of lost workers."""
        self.attempt = Attempt(place.rank)
        """The pass that the script is in."""
        self._exit_code: int | None = None
        self.has_left = False
        """Whether this process's part has ended."""
        self.failure: TaihuError | None = None
        """The error with which the run has ended, where this process's script had come to its end."""
        self._place = place
        options = options_of(os.environ)
        # Others may still be about to leave the group that was before.
        self._comes_again = not is_first or (options.lives > 0 and replaces(os.environ))
        self._clock = SystemClock()
        self._activity = Activity(self._clock)
        self._last_will = LastWill(place.job.patience.still_after_s)
        reports = Reports(place.job, place.rank, options, self._activity, place.listen)
        self._reports = self._stack.enter_context(reports)
        self._stack.push(self._together)
        self._process = os.getpid()
        self._listener = None if place.is_alone else listen_for_peers(place.job, place.rank, place.listen)

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to exchange anything with."""
        return self.size == 1

    def meet(self, *, mesh: bool = False) -> Communicator:
        """The ways to the other workers, connected by the first call, which all of them make alike.

        Args:
            mesh: whether parts go from each to each.
        """
        if self._meeting is None:
            self._reports.joins()
            until_s = self._clock.now() + self.job.cluster.connect_timeout_s if self._comes_again else 0.0
            self._meeting = self._meet(mesh=mesh, until_s=until_s)
            self._sums = SmallSums(self._meeting.communicator, self.job.exchange.transport)
            self._together.push(self._opened)
        return self._meeting.communicator

    def _meet(self, *, mesh: bool, until_s: float) -> Meeting:
        """Meet the others; until then those of the world before may still be leaving it."""
        while True:
            listener = self._listener or listen_for_peers(self.job, self.rank, self._place.listen)
            self._listener = None
            try:
                met = meet_workers(self.job, self.rank, self._reporting, listener=listener, mesh=mesh)
                return self._together.enter_context(met)
            except TaihuError:
                if self._clock.now() > until_s:
                    raise
                self._clock.sleep(_ASK_AGAIN_S)

    def spread(self) -> Spread:
        """This worker's part in layers that are spread over the workers; all of them call this.

        Raises:
            RunError: there is a DistributedOptimizer already.
            TaihuError: the others cannot be reached.
        """
        if self._steps is not None:
            raise RunError(
                "shard_linear comes too late: call it before the optimizer and DistributedOptimizer are made"
            )
        if self._spread is None:
            self._spread = Spread(PeerMover(self.meet(mesh=True), self._clock), self._waits_in_spread)
        return self._spread

    @property
    def is_joined(self) -> bool:
        """Whether workers may have different numbers of backwards now."""
        return self._steps is not None and self._steps.is_joined

    @property
    def spreads(self) -> Spread | None:
        """This worker's part in spread layers, where there are any."""
        return self._spread

    @property
    def served(self) -> int:
        """The number of parameters that servers update."""
        return 0 if self._steps is None or self._steps.updates is None else self._steps.updates.parameters

    def train(
        self, optimized: Optimized, brings: Sequence[torch.Tensor], updates: ServerUpdates | None = None
    ) -> BackwardSteps:
        """Join, take over worker 0's values, and exchange an optimizer's gradients from the next backward on.

        All workers call this alike, for one optimizer after the other.

        Args:
            optimized: the optimizer.
            brings: all tensors that are to be worker 0's everywhere.
            updates: of the servers, where these update: they bring the parameters, which lie in the arena then.

        Returns:
            The steps of all optimizers.

        Raises:
            ConfigError: the servers cannot, or not for one more optimizer.
            RunError: the run was left, or another worker does something else.
            TaihuError: the others cannot be reached.
        """
        if self.has_left:
            raise RunError("shutdown() has left the run: call init() before another DistributedOptimizer")
        if self._steps is not None:
            _check_another(self._steps, updates)
            brings = self._steps.writable(brings)
        job = settled(self.job, None if updates is None else updates.script.rules)
        communicator = self.meet()
        assert self._sums is not None  # noqa: S101
        with self._waiting_in("the beginning of a DistributedOptimizer"):
            self._call(Call.WRAP, brings, f'update="{"workers" if updates is None else "servers"}"')
            bring(communicator, brings)
        if self._steps is None:
            self._reports.joined(job)
            served = None if updates is None else Served()
            self._steps = BackwardSteps(
                job,
                partial(self._open, job=job, updates=served),
                self._reports,
                agree=partial(_agree, communicator),
                bring=partial(bring, communicator),
                rank=self.rank,
                size=self.size,
                sums=self._sums,
                helping=communicator,
                waits=self._waits,
                attempt=self.attempt,
                updates=served,
            )
        self._steps.add(optimized, updates)
        return self._steps

    def _call(self, call: Call, tensors: Sequence[torch.Tensor], said: str = "") -> None:
        """Say what this worker is about to do with tensors, and wait until all others do the same with theirs.

        Raises:
            RunError: on all workers, where another one does something else.
        """
        assert self._sums is not None  # noqa: S101
        flags, step = (0, 0) if self._steps is None else (self._steps.flags, self._steps.step)
        word = Word(call, step + 1, digest_of_tensors(tensors, said))
        own = f"{said} {len(tensors)} tensors of {sum(each.numel() for each in tensors):,} values".strip()
        RollCall(self.rank, self.size, self._sums, nullcontext()).agree_on(word, flags, own)

    def _open(
        self,
        order: Sequence[int],
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        *,
        job: Job,
        updates: Served | None,
    ) -> tuple[GradientArena | CodedGradients, Codes | None, Session]:
        """Open the exchange of all parameters, which are, as their layers, in `order`; the one before is closed.

        Raises:
            TaihuError: the others cannot be reached, or train something else.
        """
        assert self._meeting is not None  # noqa: S101
        former = self._session
        if former is not None and not self._is_through_servers:
            self._opened.close()
            self._meeting.communicator.forget_shared()
        if former is not None and self._is_through_servers:
            # Servers would miss whom they exchange with: what was opened with them stays open.
            self._opened = self._together.enter_context(ExitStack())
        self._is_through_servers = former is None and bool(job.servers)
        job = job if former is None else between_workers_of(job)
        coder = make_coder(layout, job.compression, job.train.seed)
        sent = layout if coder is None else coder.layout
        arenas = arenas_of(job, sent.elements)
        exchanged = Exchanged(sent, arenas)
        if updates is not None:
            put = offer(layout, parameters, arenas.parameters)
            exchanged = Exchanged(layout, arenas, put, updates.rules(order))
            if self.rank == 0 and arenas.parameter_pages is None:
                for layer in range(len(layout.layers)):
                    put(layer)
        if former is None:
            opening = exchange_after_meeting(self.job, self._meeting, exchanged, self._reporting)
        else:
            plan = plan_anew(job, sent, former.exchange.plan)
            opening = exchange_by_plan(job, plan, self._meeting, exchanged, self._reporting)
        session = self._session = self._opened.enter_context(opening)
        self._opened.callback(self._reports.tell_trace, session)
        self._activity.takes_part(session)
        if updates is not None:
            take_over(layout, parameters, arenas.parameters)
        if coder is not None:
            codes = Codes(coder, arenas.gradients)
            coded = CodedGradients(layout, parameters, codes)
            self._opened.callback(coded.close)
            return coded, codes, session
        keeps, seals = not job.stage.divides_gradients, updates is not None
        dtype = _TYPES[arenas.gradient_type]
        gradients = GradientArena(layout, parameters, arenas.gradients, dtype=dtype, keeps=keeps, seals=seals)
        self._opened.callback(gradients.close)
        return gradients, None, session

    def bring(self, tensors: Sequence[torch.Tensor], root: int = 0) -> None:
        """Have the values of worker `root` in `tensors`, which all workers have alike; nothing may be under way.

        Raises:
            RunError: on all workers, where another one does something else.
        """
        if self._steps is not None:
            tensors = self._steps.writable(tensors)
        if self._meeting is not None:
            with self._waiting_in("broadcast_parameters()"):
                self._call(Call.BRING, tensors)
                bring(self._meeting.communicator, tensors, root)

    @property
    def exchanged(self) -> int:
        """The steps whose gradients have been exchanged, in all lives of the script."""
        return self._reports.before + (0 if self._steps is None else self._steps.step)

    def weigh(self, weight: float) -> None:
        """Have this worker's gradients count so much in the means, from the next backward on."""
        if self._steps is not None:
            self._steps.weight = weight

    def goes_on(self, exchanged: int) -> None:
        """The script goes on behind so many exchanged steps of earlier lives."""
        self._reports.goes_on(exchanged)

    def keep_state(self) -> None:
        """The script keeps its state from now on: who comes in the place of a lost worker takes it over."""
        self.keeps_state = True
        self.stays = replaces(os.environ) and not self.is_alone

    def begins_again(self, error: BaseException) -> bool:
        """Whether this process ends by `error`, and another one is to go on in its place: others are lost."""
        if not (self.keeps_state and replaces(os.environ)) or isinstance(error, DisagreementError):
            return False
        # What a script makes of a pass that is given up is no error of its own.
        is_given_up = self.attempt.lost is not None
        return is_given_up or isinstance(error, RecoveringError) or is_due_to_others_than(self.rank, error)

    def tell_whether_it_stays(self) -> None:
        """Have the launcher know whether this process need not be started again where another one is lost."""
        self._reports.stays(self.stays)

    def flush(self) -> None:
        """Have what has been reported outlive this process."""
        self._reports.flush()

    def logs(self, values: Mapping[str, float]) -> None:
        """The script has values of its own for loggers, of the step that it has exchanged last."""
        self._reports.logs(values, self.exchanged)

    def does_again(self, method: Callable[[], None]) -> None:
        """The script has called `method` with all others, which it is not kept alive for, as a new process will."""
        if self.keeps_state:
            self.stays = False  # nobody who begins anew would do the same at this place
        self._again.append(WeakMethod(method))

    def meet_again(self, lost: TaihuError) -> None:
        """Give up what the workers have made together, and make it with those who come in the place of lost ones.

        All that is exchanged begins anew, as in a process that comes to the same place of its script.

        Raises:
            RecoveringError: they do not come, or do something else.
        """
        until_s = self._clock.now() + self.job.cluster.connect_timeout_s
        while True:
            self._part(lost)
            try:
                self.meet()
                for method in self._again:
                    if (call := method()) is not None:
                        call()
            except TaihuError as error:
                if self._clock.now() > until_s or isinstance(error, DisagreementError):
                    raise RecoveringError(str(lost)) from error
            else:
                return

    def _part(self, lost: TaihuError) -> None:
        """Leave the group, of which `lost` is told to who has not heard of it."""
        self._last_will.cancel()
        self._last_will = LastWill(self.job.patience.still_after_s)
        if self._steps is not None:
            self._steps.close()
        with suppress(TaihuError):
            self._together.__exit__(type(lost), lost, lost.__traceback__)
        self._meeting = self._sums = self._session = self._steps = None
        self._opened = ExitStack()
        self._is_through_servers, self._comes_again = False, True
        # Arenas and shared memory hang in cycles: they go before as much is taken again.
        collect_garbage()

    def at_end(self, close: Callable[..., None]) -> None:
        """Call `close(well=...)` when this process's part ends: well, or with an error, or an exit code."""

        def closed(kind: type[BaseException] | None, *_: object) -> None:
            close(well=kind is None and not self._exit_code)

        self._stack.push(closed)

    def leave(self, error: BaseException | None = None, exit_code: int | None = None) -> None:
        """End this process's part: in order when all others have done theirs, or with what went wrong here.

        Args:
            error: that ends this process.
            exit_code: of this process, where it is known and there is no error.
        """
        # A process that the script has forked, as loaders of data are, has no part of its own.
        if self.has_left or self._process != os.getpid():
            return
        self.has_left, self._exit_code = True, exit_code
        kind: type[BaseException] | None = None
        trace: TracebackType | None = None
        if error is not None:
            kind, trace = type(error), error.__traceback__
        elif self._meeting is not None:
            try:
                if self._steps is not None:
                    self._steps.settle()
                if self._session is not None:
                    self._reports.tell_results(self._session)
                checksums = "" if self._steps is None else self._steps.checksums()
                self._meeting.client.finish_with_all(
                    progress=self._progress(), parameters_sha256=checksums, exit_code=exit_code
                )
            except TaihuError as failure:
                kind, error, trace = type(failure), failure, failure.__traceback__
                self.failure = failure
                tell(f"error: {one_line(str(failure))}", self._log)
        if self._meeting is None and self._listener is not None:
            self._listener.close()
        self._last_will.cancel()
        if self._steps is not None:
            self._steps.close()
        self._stack.__exit__(kind, error, trace)

    def _waits(self, is_waiting: bool) -> None:
        self._is_waiting = is_waiting
        if is_waiting:
            self.was_in = self._operation

    @property
    def _operation(self) -> str:
        """The operation of all workers that this one is in, in words."""
        steps = self._steps
        if self._waits_in or steps is None:
            return self._waits_in
        return "a block of join()" if steps.is_joined else f"its {ordinal(max(1, steps.step))} backward"

    @property
    def _reporting(self) -> Reporting:
        reports = self._reports
        return Reporting(
            self._progress, reports.observer.compressed, reports.tracer, self._last_will.begin, reports.hosting
        )

    def _waits_in_spread(self, is_waiting: bool) -> None:
        self._waits_in = "a call of layers that shard_linear has spread" if is_waiting else ""
        self._waits(is_waiting)

    @contextmanager
    def _waiting_in(self, what: str) -> Iterator[None]:
        self._waits_in = what
        self._waits(True)
        try:
            yield
        finally:
            self._waits(False)
            self._waits_in = ""

    def _progress(self) -> Progress:
        meeting, steps = self._meeting, self._steps
        backwards = 0 if steps is None else steps.step
        calls = () if meeting is None else meeting.communicator.begun
        if self._is_waiting:
            progress = replace(self._reports.observer.progress(), begun=(backwards, *calls), waits_in=self._operation)
            if self._session is not None or meeting is None:
                return progress
            # The first backward has not ended everywhere.
            return replace(progress, waits_for=meeting.communicator.awaited)
        # What the script does between two steps is its own affair, however long it takes.
        self._activity.moved()
        progress = self._reports.observer.progress()
        return replace(progress, waits_for="", in_step_seconds=0.0, begun=(backwards, *calls))


def _check_another(steps: BackwardSteps, updates: ServerUpdates | None) -> None:
    """Raise ConfigError where one more optimizer, which servers update by `updates`, cannot be exchanged."""
    if (updates is None) != (steps.updates is None):
        raise ConfigError(
            'update="servers": servers carry out all optimizers of a script, or none: give each DistributedOptimizer '
            "the same update"
        )
    if updates is not None and steps.flags:
        raise ConfigError(
            'update="servers": servers begin with the optimizers that are there at the first backward: make every '
            "DistributedOptimizer before it"
        )


def _agree(communicator: Communicator, order: Sequence[int]) -> tuple[int, ...]:
    """Worker 0's order; the own one where worker 0 has another number of parameters, of which the layout tells."""
    count = torch.tensor([len(order)])
    bring(communicator, [count])
    numbers = torch.tensor(order) if len(order) == count.item() else torch.zeros(int(count), dtype=torch.int64)
    bring(communicator, [numbers])
    return tuple(numbers.tolist()) if len(order) == count.item() else tuple(order)


def bring(communicator: Communicator, tensors: Sequence[torch.Tensor], root: int = 0) -> None:
    """Have the values of worker `root` in all `tensors`, to the bit, whatever their types and devices.

    Columns of spread layers are left alone: they are each worker's own.
    """
    with torch.no_grad():
        for tensor in tensors:
            if is_spread(tensor):
                continue
            here = tensor.detach().to("cpu", copy=True).contiguous()
            # As bytes in the clothes of fp32: broadcasting moves them, and computes nothing.
            raw = here.view(-1).view(torch.uint8).numpy() if here.numel() else np.zeros(0, dtype=np.uint8)
            padded = np.zeros(-(-len(raw) // 4) * 4, dtype=np.uint8)
            padded[: len(raw)] = raw
            for start in range(0, len(padded) // 4, _VALUES_AT_A_TIME):
                communicator.broadcast(padded.view(np.float32)[start : start + _VALUES_AT_A_TIME], root=root)
            if here.numel():
                brought = torch.from_numpy(padded[: len(raw)]).view(here.dtype).view(here.shape)
                tensor.copy_(brought)
