"""A server's parameters while a run goes on: initialized once, updated frame by frame, read frame by frame."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernels.reduce import warm_up
from ps_server.aggregator import Aggregator, Complete, Outcome
from ps_server.answer import Answer
from ps_server.contribution import (
    Contribution,
    HalfContribution,
    count_non_finite,
    decode_contribution,
    values_of,
)
from ps_server.frame_buffers import FrameBuffers
from ps_server.initialization import Initialization
from ps_server.pull import Pull, make_pull
from taihu.coordination.plan import Plan
from taihu.errors import FrameError, ModelError, PeerUnreachableError, SharedMemoryError, StaleError, TaihuError
from taihu.job import Job
from taihu.layout import Layout
from taihu.optimization import OptimizerShard, SumShard, in_steps
from taihu.planner.partition import FrameSpec, Framing, Shard
from taihu.wire.clock import Clock, SystemClock
from taihu.wire.codec import BYTES_PER_VALUE, Frame, FrameHeader, ValueType, encode_frame
from taihu.wire.shared_memory import SharedBuffer, SharedDescriptor, open_shared

__all__ = ["ParameterStore"]

Values = NDArray[np.float32]


class ParameterStore:
    """The shard of server `index`: parameters, optimizer state and the sums under way. Thread-safe.

    `get_plan` returns the run's present plan; it is called when the parameters arrive and when a frame of a later
    plan does.

    Attributes:
        buffers: memory for dense frames, to which it returns when they have been summed.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        incarnation: int,
        get_plan: Callable[[], Plan],
        clock: Clock | None = None,
    ) -> None:
        self._job = job
        self._index = index
        self._incarnation = incarnation
        self._value_type = ValueType.named(job.train.precision)
        self._get_plan = get_plan
        self._clock = clock or SystemClock()
        self.buffers = FrameBuffers()
        self._changed = threading.Condition()
        self._plan: Plan | None = None
        self._shard: Shard | None = None
        self._state_frames: tuple[FrameSpec, ...] = ()
        self._parameters: Values = np.zeros(0, dtype=np.float32)
        self._buffer: SharedBuffer | None = None
        self._aggregator: Aggregator[Contribution] | None = None
        self._optimizer: OptimizerShard | SumShard | None = None
        self._pull: Pull | None = None
        self._framing: Framing | None = None
        self._step = 0
        self._failure: TaihuError | None = None

    @property
    def step(self) -> int:
        """The highest step of which a frame was updated."""
        return self._step

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, or in stage 0 of ZeRO sums, optimizer state, and what answers are made from."""
        held = sum(part.state_bytes for part in (self._optimizer, self._pull) if part is not None)
        return self._parameters.nbytes + held

    def begin(self, layout: Layout) -> Initialization:
        """Start to take in initial parameters of `layout`.

        Raises:
            StaleError: the parameters are there already.
            ModelError: the layout is not the one that the run agreed on.
        """
        plan = self._get_plan()
        difference = layout.difference(plan.layout)
        if difference:
            raise ModelError(f"initial parameters are of another model: {difference}")
        if self._plan is not None:
            raise StaleError("the parameters have been initialized already; only worker 0 does so, once")
        shard = Shard(layout, self._job.cluster.servers, self._index)
        return Initialization(self._job.name, plan, shard, shared=self._job.shares_memory)

    def adopt(self, initial: Initialization) -> int:
        """Make complete initial parameters this shard's; returns their number of values."""
        initial.check_complete()
        optimizer = (
            OptimizerShard(in_steps(self._job.server_optimizer, initial.plan.length), initial.parameters)
            if self._job.zero
            else SumShard(initial.parameters)
        )
        optimizer.warm_up()
        warm_up()
        pull = make_pull(self._job, initial.parameters, optimizer)
        with self._changed:
            if self._plan is not None:
                raise StaleError("the parameters have been initialized already; only worker 0 does so, once")
            self._shard = initial.shard
            self._state_frames = initial.frames
            self._parameters = initial.parameters
            self._buffer = initial.buffer
            self._optimizer = optimizer
            self._pull = pull
            self._set_plan(initial.plan, last_step=0)
            self._changed.notify_all()
        return len(initial.parameters)

    def wait_until_initialized(self, timeout_s: float) -> None:
        """Return when there are parameters.

        Raises:
            PeerUnreachableError: they did not come in time.
            TaihuError: what `fail` was told.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._plan is not None or self._failure is not None, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._plan is None:
                raise PeerUnreachableError(f"worker 0 brought no initial parameters within {timeout_s:g} s")

    def fail(self, error: TaihuError) -> None:
        """Make every present and later `wait_until_initialized` raise `error`."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def check_layout(self, digest: str) -> None:
        """Raise ModelError unless `digest` is that of the layout held here."""
        if self._plan is None or digest != self._plan.layout.digest:
            raise ModelError(
                "the worker's model differs from the server's; give every worker the same model and data"
            )

    def read(self) -> Iterator[bytes]:
        """Every frame of the current parameters, encoded."""
        for frame in self._state_frames:
            yield encode_frame(
                self._header(frame, self._step), (self._parameters[frame.offset : frame.offset + frame.count],)
            )

    def admit(self, rank: int, incarnation: int) -> None:
        """Let worker `rank` push; raises StaleError before initialization or for a foreign rank."""
        with self._changed:
            self._ready().admit(rank, incarnation)

    def share(self, descriptor: SharedDescriptor) -> tuple[Values, SharedDescriptor]:
        """Map the gradients of a worker on this machine; returns them, and where the worker finds the parameters.

        Raises:
            StaleError: before initialization.
            SharedMemoryError: they are no gradients of this model, or one of the two sides shares no memory.
        """
        with self._changed:
            if self._plan is None:
                raise _no_parameters()
            elements, own = self._plan.layout.elements, self._buffer
        if own is None:
            raise SharedMemoryError("this server shares no memory")
        if descriptor.size_bytes != elements * BYTES_PER_VALUE:
            raise SharedMemoryError(
                f"shared gradients of {descriptor.size_bytes} bytes: the model has {elements} values"
            )
        return open_shared(descriptor).array(np.float32, elements), own.descriptor

    def stop_sharing(self) -> None:
        """Everyone who could has mapped the parameters: remove the memory's name."""
        if self._buffer is not None:
            self._buffer.unlink()

    def push(self, frame: Frame, shared: Values | None = None) -> Outcome | FrameHeader:
        """Take in one worker's frame; the frame that completes a sum returns the header of the answer.

        Args:
            frame: as it came.
            shared: the gradients that the worker shares, where values of shared frames are.

        Raises:
            FrameError: malformed, or not finite where `exchange.non_finite` is `error`.
            StaleError: see `Aggregator.offer`.
        """
        header = frame.header
        self._follow_if_later(header)
        with self._changed:
            aggregator = self._ready()
            spec = aggregator.find(header)
        sparse = self._job.compression.method != "none"
        contribution = decode_contribution(frame, spec, sparse=sparse, shared=shared, value_type=self._value_type)
        if self._job.exchange.non_finite == "error":
            self._check_finite(header, contribution)
        with self._changed:
            outcome = aggregator.offer(header, contribution)
        return self._apply(outcome) if isinstance(outcome, Complete) else outcome

    def ask(self, header: FrameHeader) -> Answer:
        """The parameters that a worker's bare frame asks for.

        Raises:
            FrameError: it is no frame of the plan, or the job's workers are not to ask.
            StaleError: see `Aggregator.check_asked`.
        """
        if self._job.zero < 3 and self._value_type is ValueType.FP32:
            raise FrameError(f"worker {header.sender} asks for what zero {self._job.zero} answers unasked")
        self._follow_if_later(header)
        with self._changed:
            frame = self._ready().check_asked(header)
        assert self._pull is not None  # noqa: S101
        return Answer(self._header(frame, header.step, self._value_type), (self._pull.parameters(frame),))

    def answer(self, header: FrameHeader, *, shared: bool) -> Answer:
        """The answer that `push` returned the header of; `shared`: to one who has the parameters mapped."""
        assert self._pull is not None  # noqa: S101
        assert self._framing is not None  # noqa: S101
        frame = self._framing.at(header.offset)
        assert frame is not None  # noqa: S101
        return self._pull.answer(frame, replace(header, shared=shared))

    def answer_again(self, header: FrameHeader, *, shared: bool) -> Answer:
        """The answer to a worker's frame that had been answered before."""
        with self._changed:
            frame = self._ready().find(header)
            skipped = self._ready().was_skipped(frame)
        return self.answer(self._summed(frame, header.step, skipped=skipped), shared=shared)

    def _follow_if_later(self, header: FrameHeader) -> None:
        """Change to the plan of `header`, if it is the first frame of a later one.

        Every worker has pulled all of the step before, or it would not push by another plan.
        """
        version = header.plan
        if self._plan is None or version <= self._plan.version:
            return
        plan = self._get_plan()
        with self._changed:
            if self._plan is None or plan.version <= self._plan.version:
                return
            if plan.version != version or not self._ready().is_quiet_after(plan.from_step - 1):
                raise StaleError(
                    f"frame of plan {version}: this server is at plan {self._plan.version}, the run at plan "
                    f"{plan.version}, which begins with step {plan.from_step}"
                )
            self._set_plan(plan, last_step=plan.from_step - 1)

    def _set_plan(self, plan: Plan, last_step: int) -> None:
        assert self._shard is not None  # noqa: S101
        assert self._pull is not None  # noqa: S101
        self._framing = framing = Framing(self._shard, plan.groups, plan.frame_elements)
        incarnations = self._aggregator.incarnations if self._aggregator is not None else {}
        self._aggregator = Aggregator(
            job=self._job.name,
            plan=plan.version,
            workers=self._job.cluster.workers,
            frames=framing.frames,
            last_step=last_step,
        )
        for rank, incarnation in incarnations.items():
            self._aggregator.admit(rank, incarnation)
        self._pull.adopt(framing)
        self.buffers.free_all()
        self._plan = plan

    def _apply(self, complete: Complete[Contribution]) -> FrameHeader:
        assert self._pull is not None  # noqa: S101
        skipped = any(isinstance(each, HalfContribution) and each.skipped for each in complete.contributions)
        header = self._summed(complete.frame, complete.step, skipped=skipped)
        self._pull.apply(complete.frame, complete.step, complete.contributions, header)
        for contribution in complete.contributions:
            self.buffers.give_back(values_of(contribution))
        with self._changed:
            self._ready().applied(complete.frame, skipped=skipped)
            self._step = max(self._step, complete.step)
        return header

    def _header(self, frame: FrameSpec, step: int, value_type: ValueType = ValueType.FP32) -> FrameHeader:
        return FrameHeader(
            job=self._job.name,
            incarnation=self._incarnation,
            plan=self._plan.version if self._plan else 0,
            step=step,
            group=frame.group,
            offset=frame.offset,
            count=frame.count,
            completed_s=self._clock.now(),
            value_type=value_type,
        )

    def _summed(self, frame: FrameSpec, step: int, *, skipped: bool) -> FrameHeader:
        """Of the answer to everybody; where workers ask for parameters when they need them, it has none."""
        return replace(self._header(frame, step, self._value_type), bare=self._job.zero == 3, skipped=skipped)

    def _ready(self) -> Aggregator[Contribution]:
        if self._aggregator is None:
            raise _no_parameters()
        return self._aggregator

    def _check_finite(self, header: FrameHeader, contribution: Contribution) -> None:
        bad = count_non_finite(contribution)
        if bad:
            raise FrameError(self._describe_non_finite(header, bad))

    def _describe_non_finite(self, header: FrameHeader, bad: int) -> str:
        name = "a group unknown here"
        if self._plan is not None and header.group < len(self._plan.groups):
            group = self._plan.groups[header.group]
            layers = self._plan.layout.layers
            name = f"layers {layers[group.first_layer].name} to {layers[group.last_layer].name}"
        return (
            f"worker {header.sender} pushed {bad} gradients that are not finite in {name} at step {header.step}; "
            "lower optimizer.learning_rate or check the data, or set exchange.non_finite = 'allow'"
        )


def _no_parameters() -> StaleError:
    return StaleError("this server has no parameters yet; worker 0 initializes them first")
