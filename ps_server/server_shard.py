"""The shard of one server: its part of the parameters, their optimizer state, and the sums under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError, ModelError, SharedMemoryError, StaleError
from taihu.core.chaos.points import Chaos, NoChaos, Point
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import PARAMETERS, Elements, State
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.coordination.checkpointing import manifest_of
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.recording import Recorder
from taihu.core.job import Job
from taihu.core.optimization import OptimizerShard, RuledShard, StepRates, SumShard, in_steps
from taihu.core.planner.partition import FrameSpec, Shard
from taihu.core.system.threads import Lock
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import BYTES_PER_VALUE, At, Frame, FrameHeader, ValueType, dense_values
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Parameters, Rates, Summed
from taihu.core.wire.links.shared_memory import SharedBuffer, SharedDescriptor, open_shared
from taihu.kernels.reduce import warm_up
from taihu.kernels.selection.scatter import scatter_assign
from taihu.kernels.selection.select import clear
from taihu.ps_server.aggregator import Aggregator, Complete, Outcome
from taihu.ps_server.answering import Answer, make_answering
from taihu.ps_server.frame_buffers import FrameBuffers
from taihu.ps_server.holding import Holding
from taihu.ps_server.recording import Recording
from taihu.ps_server.snapshot import Snapshot
from taihu.ps_server.summing import (
    Contribution,
    DenseSum,
    Scratch,
    ScratchPool,
    SparseSum,
    Summing,
    Total,
    count_non_finite,
    make_summing,
    values_of,
)

__all__ = ["ServerShard"]

# Arrays with a value for each unit that shares a threshold; others have one for each element.
_OF_UNITS: Final = ("thresholds", "ages", "kept")

Values = NDArray[np.float32]


class ServerShard:
    """The shard of one server, complete from the beginning.

    Any thread may call. Frames are disjoint: the thread that brings the last contribution to one sums it, updates the
    parameters and makes the answer, while others do so for other frames. `snapshot`, `restore` and a change of plan
    need a moment between two steps; they refuse any other, and wait for nothing.

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

    Attributes:
        buffers: memory for dense frames, to which it returns when they have been summed.
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
    ) -> None:
        self._job = job
        self._holding = None if held is None else Holding(held, self._live_state)
        self._partition = partition
        self._plan = plan
        self._parameters = parameters
        self._buffer = buffer
        self._sender = Sender(job.name, incarnation)
        self._get_plan = get_plan
        self._clock = clock or SystemClock()
        self._chaos = chaos or NoChaos()
        self._value_type = ValueType.named(job.train.precision)
        self._state_frames = partition.state_frames(plan.frame_elements)
        self._lock = Lock()
        self._step = 0
        self._rates = None if plan.updates is None else StepRates(len(plan.updates.weight_decays))
        self._optimizer = _optimizer_of(job, plan, partition, parameters, self._rates)
        self._answering = make_answering(job, parameters)
        self._recording = Recording(
            recorder or Recorder.off(), parameters, self._value_type.half_kind, updates=job.stage.divides_optimizer
        )
        self._summing = self._make_summing()
        frames = self._frames_of(plan)
        self._summing.adopt(frames)
        self._scratches = ScratchPool(frames, few_bits=job.compression.rounds_sums)
        self._aggregator: Aggregator[Contribution] = Aggregator(
            job=job.name,
            plan=plan.version,
            workers=plan.world.workers,
            frames=frames,
            gaps=job.leaves_out or (plan.updates is not None and plan.updates.steps_by_parts),
        )
        self.buffers = FrameBuffers()

    @property
    def _scale(self) -> float:
        """The factor that makes means of sums."""
        return 1.0 / self._plan.world.workers

    @property
    def step(self) -> int:
        """The highest step of which a frame was updated."""
        return self._step

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
        return self._parameters.nbytes + self._optimizer.state_bytes + self._answering.state_bytes

    def warm_up(self) -> None:
        """Compile the kernels that updates will use, or load them from the disk cache."""
        self._optimizer.warm_up()
        warm_up()

    def check_layout(self, digest: str) -> None:
        """Raise ModelError unless `digest` is that of the layout held here."""
        if digest != self._plan.layout.digest:
            raise ModelError(
                "the worker's model differs from the server's; give every worker the same model and data"
            )

    def read(self) -> Iterator[bytes]:
        """Every frame of the current parameters, encoded."""
        for frame in self._state_frames:
            header = FrameHeader(self._sender, At(self._plan.version, self._step).range(frame), Parameters())
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
        if self._holding is not None:
            self._holding.close()

    def push(self, frame: Frame, shared: Values | None = None) -> Answer | Outcome:
        """Take in one worker's frame; the frame that completes a sum returns the answer to all workers.

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
        self._chaos.passes(Point.PUSH, header.address.at.step)
        self._follow_if_later(header)
        with self._lock:
            spec = self._aggregator.find(header)
        contribution = self._summing.decode(frame, spec, shared)
        if self._job.refuses_non_finite:
            self._check_finite(header, contribution)
        with self._lock:
            if self._rates is not None and header.sender.rank is not None:
                at = header.address.at
                self._rates.check(header.sender.rank, at.step, at.attempt)
            outcome = self._aggregator.offer(header, contribution)
        return self._apply(outcome) if isinstance(outcome, Complete) else outcome

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
        self._follow_if_later(header)
        at = header.address.at
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
        return self._answering.answer(frame, self._answer_header(frame, header.address.at, skipped=skipped))

    def ask(self, header: FrameHeader) -> Answer:
        """The parameters that a worker's question asks for.

        Raises:
            FrameError: it is no frame of the plan, or the job's workers are not to ask.
            StaleError: see `Aggregator.check_asked`.
        """
        if not self._job.stage.divides_parameters and self._value_type is ValueType.FP32:
            raise FrameError(f"{header.sender.label} asks for what zero {self._job.stage} answers unasked")
        self._follow_if_later(header)
        with self._lock:
            frame = self._aggregator.check_asked(header)
        answer = FrameHeader(self._sender, header.address, Parameters(), value_type=self._value_type)
        return Answer(answer, (self._answering.parameters(frame),))

    def snapshot(self) -> Snapshot:
        """A copy of all that the run needs to go on from here.

        Between the update of a step's last frame and the answer to it no worker can push, so that whoever does both
        has the moment for it.

        Raises:
            StaleError: a step is under way.
        """
        with self._lock:
            if not self._aggregator.is_quiet_after(self._step):
                raise StaleError(f"snapshot after step {self._step}: a step is under way, take it between two")
            arrays = {name: array.copy() for name, array in self._state(self._summing).items()}
            return Snapshot(self._step, self._plan.version, arrays)

    @property
    def keeps_state(self) -> bool:
        """Whether the run needs anything of this server: not where workers have all there is (stage 0 of ZeRO)."""
        return not isinstance(self._optimizer, SumShard)

    def state(self) -> State:
        """A copy of all that the run needs of this server to go on behind the last step.

        Raises:
            StaleError: a step is under way of which some frames have been updated, and some have not.
        """
        with self._lock:
            if not self._aggregator.has_ended(self._step):
                raise StaleError(f"step {self._step} has not ended on this server; nothing of it can be kept")
            return self._live_state().copy()

    def _live_state(self) -> State:
        arrays = self._state(self._summing)
        of_elements = {name: values for name, values in arrays.items() if name not in _OF_UNITS}
        own = {name: values for name, values in arrays.items() if name in _OF_UNITS}
        return State(Elements(self._partition.bounds, of_elements), own, {"plan": self._plan.version})

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, whose parameters are here already.

        Raises:
            CheckpointError: it lacks something that the job needs.
        """
        layout, arrays = self._plan.layout, {}
        is_same = layout == checkpoint.manifest.layout
        before = checkpoint.own_of(f"server {self._partition.index}") if is_same else {}
        for name, values in self._state(self._summing).items():
            known, arrays[name] = before.get(name), values.copy()
            if name not in _OF_UNITS and name != PARAMETERS:
                checkpoint.read_shared(name, layout, self._partition.bounds, arrays[name])
            elif known is not None and known.shape == values.shape:
                # Thresholds of other units than these are made anew.
                arrays[name] = known
        self.restore(Snapshot(checkpoint.step, self._plan.version, arrays), self._plan)

    def restore(self, snapshot: Snapshot, plan: Plan, attempt: int = 0) -> None:
        """Go on as after the step of `snapshot`, in the same memory; what had come of later steps is dropped.

        No worker may read the parameters meanwhile. Workers stay admitted.

        Args:
            snapshot: of this server, or of one with the same rank in a run of the same job.
            plan: the one by which it was taken.
            attempt: the first one at the next step whose frames are taken.

        Raises:
            StaleError: `plan` is another one, or a frame is being summed.
            ModelError: the snapshot is of another model, job or number of servers. Nothing was changed.
        """
        if plan.version != snapshot.plan:
            raise StaleError(f"snapshot by plan {snapshot.plan}: expected that plan, got plan {plan.version}")
        summing = self._make_summing()
        summing.adopt(self._frames_of(plan))
        with self._lock:
            if self._aggregator.is_applying:
                raise StaleError(f"a frame of step {self._step} is being summed; restore when its answer has come")
            state = self._state(summing)
            snapshot.check(state)
            for name, array in snapshot.arrays.items():
                np.copyto(state[name], array)
            self._summing = summing
            self._step = snapshot.step
            self._begin_plan(plan, snapshot.step, attempt)

    def _state(self, summing: Summing) -> dict[str, NDArray[Any]]:
        """Live views of all that outlasts a step, with the part of `summing`."""
        if isinstance(self._optimizer, SumShard):
            return {}
        optimizer = {f"optimizer.{name}": array for name, array in self._optimizer.state().items()}
        return {"parameters": self._parameters, **optimizer, **summing.state()}

    def _follow_if_later(self, header: FrameHeader) -> None:
        """Change to the plan of `header`, if it is the first frame of a later one.

        Every worker has pulled all of the step before, or it would not push by another plan.
        """
        at = header.address.at
        if at.plan <= self._plan.version:
            return
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
            self._summing.adopt(self._frames_of(plan))
            self._begin_plan(plan, last_step)

    def _begin_plan(self, plan: Plan, last_step: int, attempt: int = 0) -> None:
        frames = self._frames_of(plan)
        self._scratches = ScratchPool(frames, few_bits=self._job.compression.rounds_sums)
        self._answering = make_answering(self._job, self._parameters)
        self._aggregator.restart(plan.version, frames, last_step, attempt)
        if self._rates is not None:
            self._rates.forget()
        self.buffers.free_all()
        self._plan = plan
        if self._holding is not None:
            self._holding.adopt(manifest_of(self._job, plan, 0, {}))

    def _make_summing(self) -> Summing:
        on_squeezed = self._recording.squeezed if self._recording.weighs else None
        return make_summing(self._job, self._parameters, on_squeezed)

    def _frames_of(self, plan: Plan) -> tuple[FrameSpec, ...]:
        return self._partition.frames(plan.groups, plan.frame_elements)

    def _apply(self, complete: Complete[Contribution]) -> Answer:
        """Sum, update, and answer."""
        frame, step, answering = complete.frame, complete.at.step, self._answering
        header = self._answer_header(frame, complete.at)
        with self._scratches.borrowed() as scratch:
            self._chaos.passes(Point.SUM, step)
            total = self._summing.sum(frame, step, complete.contributions, scratch)
            self._recording.summed(frame, complete.at, complete.contributions, total)
            if total is None:
                self._recording.skipped(frame, step, answering)
            else:
                self._chaos.passes(Point.UPDATE, step)
                with self._recording.updating(frame, step, total, answering):
                    self._update(frame, step, total, scratch)
                    answering.updated(frame, total, header, scratch)
        for contribution in complete.contributions:
            self.buffers.give_back(values_of(contribution))
        if self._holding is not None:
            self._holding.updated(frame, step)
        with self._lock:
            self._aggregator.applied(frame, skipped=total is None)
            self._step = max(self._step, step)
            has_ended = self._holding is not None and self._aggregator.has_ended(step)
        if self._holding is not None and has_ended:
            self._holding.ended(step)
        if total is None:
            header = self._answer_header(frame, complete.at, skipped=True)
        self._chaos.passes(Point.FETCH, step)
        return answering.answer(frame, header)

    def _update(self, frame: FrameSpec, step: int, total: Total, scratch: Scratch) -> None:
        start, stop = frame.offset, frame.offset + frame.count
        if isinstance(total, DenseSum):
            self._optimizer.update(start, stop, total.values, step, scale=self._scale / total.loss_scale)
        elif self._job.downlink != "dense":
            self._optimizer.update_sparse(total.indices, total.values, step, scale=self._scale)
        else:
            values = _spread(frame, total, scratch)
            self._optimizer.update(start, stop, values, step, scale=self._scale)
            clear(values, total.indices)

    def _answer_header(self, frame: FrameSpec, at: At, *, skipped: bool = False) -> FrameHeader:
        """The header of the answer to everybody, which has no values where workers ask for them when needed."""
        encoding = Encoding.NONE if self._job.stage.divides_parameters else Encoding.DENSE
        return FrameHeader(
            self._sender, at.range(frame), Summed(self._clock.now(), skipped), encoding, self._value_type
        )

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


def _optimizer_of(
    job: Job, plan: Plan, partition: Shard, parameters: Values, rates: StepRates | None
) -> OptimizerShard | RuledShard | SumShard:
    if not job.stage.divides_optimizer:
        return SumShard(parameters, scales=job.train.precision != "fp32")
    if plan.updates is not None and rates is not None:
        return RuledShard(plan.updates, partition.offsets, parameters, rates)
    return OptimizerShard(in_steps(job.server_optimizer, plan.length), parameters)


def _spread(frame: FrameSpec, total: SparseSum, scratch: Scratch) -> Values:
    """The sum with a value for every element; the indices of `total` count from the frame's start then."""
    np.subtract(total.indices, np.int32(frame.offset), out=total.indices)
    values = scratch.total[: frame.count]
    scatter_assign(total.indices, total.values, values)
    return values
