"""The shard of one server: its part of the parameters, their optimizer state, and the sums under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError, ModelError, SharedMemoryError, StaleError
from taihu.core.chaos.points import Chaos, Point
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import PARAMETERS, Elements, State
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.coordination.coordinator.checkpointing import manifest_of
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.order import OrderFile
from taihu.core.history.recording import Recorder
from taihu.core.job import Job
from taihu.core.optimization import StepRates
from taihu.core.planner.partition import FrameSpec, Shard
from taihu.core.system.threads import Lock
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import BYTES_PER_VALUE, At, Frame, FrameHeader, ValueType, dense_values
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import MOST_AHEAD, Encoding, Gradients, Parameters, Rates, Summed
from taihu.core.wire.links.shared_memory import SharedBuffer, SharedDescriptor, open_shared
from taihu.core.wire.serving.staleness import StalenessCounts
from taihu.ps_server.aggregator import Aggregator, Complete, Outcome
from taihu.ps_server.instruments import Holding, Recording, Watched
from taihu.ps_server.loose_frames import Answers, LooseFrames
from taihu.ps_server.summing import Contribution, FrameBuffers, count_non_finite
from taihu.ps_server.updating import Answer, FrameUpdates, FrameWay

# Arrays with a value for each unit that shares a threshold; others have one for each element.
_OF_UNITS: Final = ("thresholds", "ages", "kept")

Values = NDArray[np.float32]


class ServerShard:
    """The shard of one server, complete from the beginning.

    Any thread may call. Frames are disjoint: the thread that brings the last contribution to one sums it, updates the
    parameters and makes the answer, while others do so for other frames. `state` and a change of plan need a moment
    between two steps; they refuse any other, and wait for nothing.

    Args:
        job: of the run.
        partition: what this server owns of the layout.
        plan: the run's first one.
        parameters: the initial ones, shape (partition.elements,), fp32; kept, not copied.
        buffer: where they lie, if others can map it.
        incarnation: the life of this process.
        get_plan: returns the run's present plan; called when a frame of a later one comes.
        clock: what answers tell the time by.
        recorder: gets the history of its sums and updates.
        chaos: is asked at each point.
        held: takes what each step has led to, before anybody is answered; None where nobody does.
        order: records who entered which version, where a step does not wait for all; None where nobody asks for that.
        staleness: counts contributions there.

    Attributes:
        loose: the frames there; None where all wait for all.
        buffers: memory for dense frames, to which it returns when they have been summed.
        step: the highest one of which a frame was updated.
    """

    def __init__(
        self,
        job: Job,
        partition: Shard,
        plan: Plan,
        parameters: Values,
        *,
        buffer: SharedBuffer | None = None,
        incarnation: int,
        get_plan: Callable[[], Plan],
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        chaos: Chaos | None = None,
        held: HeldSteps | None = None,
        order: OrderFile | None = None,
        staleness: StalenessCounts | None = None,
    ) -> None:
        self._job = job
        self._order = order
        self._staleness = staleness or StalenessCounts({})
        self._partition = partition
        self._plan = plan
        self._parameters = parameters
        self._buffer = buffer
        self._sender = Sender(incarnation)
        self._get_plan = get_plan
        self._clock = clock or SystemClock()
        self._value_type = ValueType.named(job.train.precision)
        self._refuses_non_finite = job.refuses_non_finite
        self._answers_questions = job.stage.divides_parameters or self._value_type is not ValueType.FP32
        # Nothing where workers ask for parameters when they need them.
        self._encoding = Encoding.NONE if job.stage.divides_parameters else Encoding.DENSE
        self._state_frames = partition.state_frames(plan.frame_elements)
        self._lock = Lock()
        self.step = 0
        self._rates = None if plan.updates is None else StepRates(len(plan.updates.weight_decays))
        recording = None if recorder is None or not recorder.enabled else Recording(recorder, job, parameters)
        on_squeezed = None if recording is None else recording.squeezed
        self._updates = FrameUpdates(job, plan, partition, parameters, self._rates, on_squeezed)
        self._holding = None if held is None else Holding(held, self._live_state)
        asked = chaos if chaos is not None and chaos.enabled else None
        self._watched: Watched | None = None
        if recording is not None or asked is not None or self._holding is not None:
            self._watched = Watched(self._updates, chaos=asked, recording=recording, holding=self._holding)
        self._way: FrameWay = self._updates if self._watched is None else self._watched
        self._aggregator: Aggregator[Contribution] = Aggregator(
            plan=plan.version,
            workers=plan.world.workers,
            frames=self._frames_of(plan),
            gaps=job.leaves_out or (plan.updates is not None and plan.updates.steps_by_parts),
        )
        self.buffers = FrameBuffers()
        self.loose = self._loose_frames(plan, 0)

    @property
    def plan(self) -> Plan:
        """The plan whose frames are taken."""
        return self._plan

    @property
    def elements(self) -> int:
        """Number of parameters."""
        return len(self._parameters)

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, or in stage 0 of ZeRO sums, optimizer state, and what answers are made from."""
        return self._updates.state_bytes

    def warm_up(self) -> None:
        """Compile the kernels that updates will use, or load them from the disk cache."""
        self._updates.warm_up()

    def check_layout(self, digest: str) -> None:
        """Raise ModelError unless `digest` is that of the layout held here."""
        if digest != self._plan.layout.digest:
            raise ModelError(
                "the worker's model differs from the server's; give every worker the same model and data"
            )

    def read(self) -> Iterator[bytes]:
        """Every frame of the current parameters, encoded."""
        for frame in self._state_frames:
            header = FrameHeader(self._sender, At(self._plan.version, self.step).range(frame), Parameters())
            yield message_of(header, (self._parameters[frame.offset : frame.offset + frame.count],))

    def admit(self, rank: int, incarnation: int) -> None:
        """Let worker `rank` push; raises StaleError for a foreign rank."""
        with self._lock:
            self._aggregator.admit(rank, incarnation)

    def leave(self, rank: int) -> None:
        """Worker `rank` has left in good order; raises MemberLostError if others wait for its frames."""
        with self._lock:
            self._aggregator.leave(rank)

    def share(self, descriptor: SharedDescriptor) -> tuple[Values, SharedDescriptor]:
        """Map the gradients of a worker on this machine; returns them, and where the worker finds the parameters.

        Raises:
            FrameError: they are those of another model.
            SharedMemoryError: one of the two sides shares no memory.
        """
        if self._buffer is None:
            raise SharedMemoryError("this server shares no memory")
        elements = self._plan.layout.elements
        if descriptor.size_bytes != elements * BYTES_PER_VALUE:
            raise FrameError(
                f"shared gradients of {descriptor.size_bytes} bytes: expected {elements * BYTES_PER_VALUE}, for the "
                f"{elements} values of the model; give every worker the same model"
            )
        return open_shared(descriptor).array(np.float32, elements), self._buffer.descriptor

    def stop_sharing(self) -> None:
        """Everyone who could has mapped the parameters: remove the memory's name."""
        if self._buffer is not None:
            self._buffer.unlink()

    def stop_holding(self) -> None:
        """This server takes no part any more: whoever goes on does so from what it holds now."""
        if self.loose is not None:
            self.loose.close()
        if self._holding is not None:
            self._holding.close()

    def push(self, frame: Frame, shared: Values | None = None) -> Answer | Answers | Outcome:
        """Take in one worker's frame; the frame that completes a sum returns the answer to all workers.

        Where a step does not wait for all it returns answers to some.

        Args:
            frame: as it came.
            shared: the gradients that the worker shares, where values of shared frames are.

        Raises:
            FrameError: malformed, of another kind than the job's, or not finite where `exchange.non_finite` is
                `error`.
            MemberLostError, StaleError: see `Aggregator.offer`.
        """
        header = frame.header
        header.expect(Gradients)
        at = header.address.at
        if self._watched is not None:
            self._watched.passes(Point.PUSH, at.step)
        if at.plan > self._plan.version:
            self._follow(at)
        with self._lock:
            spec = self._aggregator.find(header)
        contribution = self._updates.summing.decode(frame, spec, shared)
        if self._refuses_non_finite:
            self._check_finite(header, contribution)
        if self.loose is not None:
            return self._take(self.loose, spec, header, contribution)
        with self._lock:
            if self._rates is not None and header.sender.rank is not None:
                self._rates.check(header.sender.rank, at.step, at.attempt)
            outcome = self._aggregator.offer(header, contribution)
        return self._apply(outcome) if isinstance(outcome, Complete) else outcome

    def _take(
        self, loose: LooseFrames, frame: FrameSpec, header: FrameHeader, contribution: Contribution
    ) -> Answers | Outcome:
        rank, at = header.sender.rank, header.address.at
        assert rank is not None, "whom the aggregator has found"  # noqa: S101
        outcome = loose.take(frame, rank, at, contribution)
        with self._lock:
            self.step = max(self.step, at.step)
        return outcome

    def _loose_frames(self, plan: Plan, last_step: int) -> LooseFrames | None:
        consistency, workers = self._job.consistency, plan.world.workers
        if consistency.is_strict:
            return None
        updates, frames = self._updates, self._frames_of(plan)
        header, counts = self._loose_header, self._staleness
        return LooseFrames(
            consistency, workers, frames, last_step, updates, self._way, self.buffers, header, counts, self._order
        )

    def take_rates(self, frame: Frame) -> None:
        """Take the learning rates that a worker brings for the step whose gradients follow.

        Raises:
            FrameError: the job has no use for them, or they differ from those of another worker.
            GivenUpError, StaleError: see `Aggregator.offer`; the step before has not ended.
        """
        header = frame.header
        header.expect(Rates)
        if self._rates is None:
            raise FrameError(f"{header.sender.label} brings learning rates: this job has its own")
        rates = dense_values(frame, ValueType.FP64).tolist() if header.is_dense else []
        at = header.address.at
        if at.plan > self._plan.version:
            self._follow(at)
        with self._lock:
            rank = self._aggregator.check_sender(header)
            if not self._aggregator.has_ended(at.step - 1):
                raise StaleError(f"{header.sender.label} brings learning rates of step {at.step} out of turn")
            self._rates.bring(rank, at.step, at.attempt, rates)

    def answer_again(self, header: FrameHeader) -> Answer:
        """The answer to a worker's frame that `push` says had been answered before.

        Raises:
            StaleError: the step of `header` is not the last one any more.
        """
        with self._lock:
            frame, skipped = self._aggregator.find_answered(header)
        return self._updates.answering.answer(frame, self._answer_header(frame, header.address.at, skipped=skipped))

    def ask(self, header: FrameHeader) -> Answer:
        """The parameters that a worker's question asks for.

        Raises:
            FrameError: it is no frame of the plan, or the job's workers are not to ask.
            StaleError: see `Aggregator.check_asked`.
        """
        if not self._answers_questions:
            raise FrameError(f"{header.sender.label} asks for what zero {self._job.stage} answers unasked")
        if header.address.at.plan > self._plan.version:
            self._follow(header.address.at)
        with self._lock:
            frame = self._aggregator.check_asked(header)
        answer = FrameHeader(self._sender, header.address, Parameters(), value_type=self._value_type)
        return Answer(answer, (self._updates.answering.parameters(frame),))

    @property
    def keeps_state(self) -> bool:
        """Whether the run needs anything of this server: not where workers have all there is (stage 0 of ZeRO)."""
        return bool(self._updates.state())

    def state(self) -> State:
        """A copy of all that the run needs of this server to go on behind the last step.

        Raises:
            StaleError: a step is under way of which some frames have been updated, and some have not.
        """
        with self._lock:
            # Where workers stand at several steps, all of them have met behind this one.
            if self.loose is None and not self._aggregator.has_ended(self.step):
                raise StaleError(f"step {self.step} has not ended on this server; nothing of it can be kept")
            return self._live_state().copy()

    def _live_state(self) -> State:
        arrays = self._updates.state()
        of_elements = {name: values for name, values in arrays.items() if name not in _OF_UNITS}
        own = {name: values for name, values in arrays.items() if name in _OF_UNITS}
        return State(Elements(self._partition.bounds, of_elements), own, {"plan": self._plan.version})

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, whose parameters are here already; before the first frame.

        Raises:
            CheckpointError: it lacks something that the job needs.
        """
        layout = self._plan.layout
        is_same = layout == checkpoint.manifest.layout
        before = checkpoint.own_of(f"server {self._partition.index}") if is_same else {}
        for name, values in self._updates.state().items():
            known = before.get(name)
            if name not in _OF_UNITS and name != PARAMETERS:
                checkpoint.read_shared(name, layout, self._partition.bounds, values)
            elif known is not None and (known.shape, known.dtype) == (values.shape, values.dtype):
                # Thresholds of other units than these are made anew.
                np.copyto(values, known)
        self.step = checkpoint.step
        self._begin_plan(self._plan, checkpoint.step)

    def _follow(self, at: At) -> None:
        """Change to the plan of `at`, the first frame of a later one.

        Every worker has pulled all of the step before, or it would not push by another plan.
        """
        plan = self._get_plan()
        with self._lock:
            if plan.version <= self._plan.version:
                return
            last_step = plan.from_step - 1
            if plan.version != at.plan or not self._aggregator.is_quiet_after(last_step, at.attempt):
                raise StaleError(
                    f"frame of plan {at.plan}: this server is at plan {self._plan.version}, the run at plan "
                    f"{plan.version}, which begins with step {plan.from_step}"
                )
            self._begin_plan(plan, last_step)

    def _begin_plan(self, plan: Plan, last_step: int) -> None:
        frames = self._frames_of(plan)
        self._updates.adopt(plan, frames)
        self._aggregator.restart(plan.version, frames, last_step)
        self.loose = self._loose_frames(plan, last_step)
        if self._rates is not None:
            self._rates.forget()
        self.buffers.free_all()
        self._plan = plan
        if self._holding is not None:
            self._holding.adopt(manifest_of(self._job, plan, 0, {}))

    def _frames_of(self, plan: Plan) -> tuple[FrameSpec, ...]:
        return self._partition.frames(plan.groups, plan.frame_elements)

    def _apply(self, complete: Complete[Contribution]) -> Answer:
        """Sum, update, and answer."""
        frame, step, updates = complete.frame, complete.at.step, self._updates
        answering = updates.answering
        header = self._answer_header(frame, complete.at)
        scratch = updates.borrow()
        total = self._way.sum(complete, scratch)
        self._way.update(complete, total, header, scratch)
        updates.give_back(scratch)
        self.buffers.give_back(complete.contributions)
        with self._lock:
            self._aggregator.applied(frame, skipped=total is None)
            self.step = max(self.step, step)
            has_ended = self._holding is not None and self._aggregator.has_ended(step)
        if self._watched is not None:
            self._watched.answers(step, has_ended=has_ended)
        if total is None:
            header = self._answer_header(frame, complete.at, skipped=True)
        return answering.answer(frame, header)

    def _answer_header(self, frame: FrameSpec, at: At, *, skipped: bool = False) -> FrameHeader:
        """The header of the answer to everybody."""
        summed = Summed(self._clock.now(), skipped)
        return FrameHeader(self._sender, at.range(frame), summed, self._encoding, self._value_type)

    def _loose_header(self, frame: FrameSpec, at: At, ahead: int) -> FrameHeader:
        """The header of an answer to some workers."""
        summed = Summed(self._clock.now(), ahead=min(ahead, MOST_AHEAD))
        return FrameHeader(self._sender, at.range(frame), summed, self._encoding, self._value_type)

    def _check_finite(self, header: FrameHeader, contribution: Contribution) -> None:
        bad = count_non_finite(contribution)
        if bad:
            at, number, *_ = header.address
            group, layers = self._plan.groups[number], self._plan.layout.layers
            raise FrameError(
                f"{header.sender.label} pushed {bad} gradients that are not finite in layers "
                f"{layers[group.first_layer].name} to {layers[group.last_layer].name} at step {at.step}; "
                "lower optimizer.learning_rate or check the data, or set exchange.non_finite = 'allow'"
            )
