"""A server's parameters while a run goes on: initialized once, updated frame by frame, read frame by frame."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kernels.reduce import all_finite, sum_in_rank_order, warm_up
from ps_server.aggregator import Aggregator, Complete, Outcome
from ps_server.optimizer import OptimizerShard
from taihu.coordination.plan import Plan
from taihu.errors import FrameError, ModelError, PeerUnreachableError, StaleError, TaihuError
from taihu.job import Job
from taihu.layout import Layout
from taihu.planner.partition import FrameSpec, Shard
from taihu.wire.codec import BYTES_PER_VALUE, FrameHeader, encode_frame

__all__ = ["Initialization", "ParameterStore"]

Values = NDArray[np.float32]


class Initialization:
    """Initial parameters on their way in; `ParameterStore.adopt` takes them when every frame has come."""

    def __init__(self, job: str, plan: Plan, shard: Shard, frames: tuple[FrameSpec, ...]) -> None:
        self.job = job
        self.plan = plan
        self.frames = frames
        self.parameters = np.zeros(shard.elements, dtype=np.float32)
        self._missing = {frame.offset: frame for frame in frames}

    def write(self, header: FrameHeader, values: Values) -> None:
        """Take in one frame.

        Raises:
            StaleError: the frame belongs to another job or plan.
            FrameError: it is not one of the plan's frames that have not come yet.
        """
        if header.job != self.job or header.plan != self.plan.version:
            raise StaleError(
                f"initial frame of job {header.job!r}, plan {header.plan}; "
                f"expected job {self.job!r}, plan {self.plan.version}"
            )
        frame = self._missing.get(header.offset)
        if frame is None or frame.count != header.count or header.step != 0 or header.sender != 0:
            raise FrameError(
                f"initial frame of worker {header.sender} at offset {header.offset} with {header.count} values "
                f"at step {header.step}: expected each frame of the plan once, at step 0, of worker 0"
            )
        del self._missing[header.offset]
        self.parameters[header.offset : header.offset + header.count] = values

    def check_complete(self) -> None:
        """Raise FrameError unless every frame has come."""
        if self._missing:
            raise FrameError(f"initial parameters: {len(self._missing)} of {len(self.frames)} frames did not come")


class ParameterStore:
    """The shard of server `index`: parameters, optimizer state and the sums under way. Thread-safe.

    `get_plan` returns the run's plan; it is called when the parameters arrive.
    """

    def __init__(self, job: Job, index: int, incarnation: int, get_plan: Callable[[], Plan]) -> None:
        self._job = job
        self._index = index
        self._incarnation = incarnation
        self._get_plan = get_plan
        self._frame_elements = job.exchange.frame_bytes // BYTES_PER_VALUE
        self._scratch = threading.local()
        self._changed = threading.Condition()
        self._plan: Plan | None = None
        self._frames: tuple[FrameSpec, ...] = ()
        self._parameters: Values = np.zeros(0, dtype=np.float32)
        self._aggregator: Aggregator[Values] | None = None
        self._optimizer: OptimizerShard | None = None
        self._step = 0
        self._failure: TaihuError | None = None

    @property
    def step(self) -> int:
        """The highest step of which a frame was updated."""
        return self._step

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters and optimizer state."""
        return self._parameters.nbytes + (self._optimizer.state_bytes if self._optimizer else 0)

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
        return Initialization(self._job.name, plan, shard, shard.frames(plan.groups, self._frame_elements))

    def adopt(self, initial: Initialization) -> int:
        """Make complete initial parameters this shard's; returns their number of values."""
        initial.check_complete()
        optimizer = OptimizerShard(self._job.optimizer, initial.parameters)
        optimizer.warm_up()
        warm_up()
        with self._changed:
            if self._plan is not None:
                raise StaleError("the parameters have been initialized already; only worker 0 does so, once")
            self._plan = initial.plan
            self._frames = initial.frames
            self._parameters = initial.parameters
            self._optimizer = optimizer
            self._aggregator = Aggregator(
                job=self._job.name,
                plan=initial.plan.version,
                workers=self._job.cluster.workers,
                frames=initial.frames,
            )
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
        for frame in self._frames:
            yield self._encode(frame, self._step)

    def admit(self, rank: int, incarnation: int) -> None:
        """Let worker `rank` push; raises StaleError before initialization or for a foreign rank."""
        with self._changed:
            self._ready().admit(rank, incarnation)

    def push(self, header: FrameHeader, values: Values) -> Outcome | bytes:
        """Take in one worker's frame; the frame that completes a sum returns the encoded answer for all workers.

        Raises:
            FrameError: malformed, or not finite where `exchange.non_finite` is `error`.
            StaleError: see `Aggregator.offer`.
        """
        if self._job.exchange.non_finite == "error" and not all_finite(values):
            raise FrameError(self._describe_non_finite(header, values))
        with self._changed:
            outcome = self._ready().offer(header, values)
        return self._apply(outcome) if isinstance(outcome, Complete) else outcome

    def answer_again(self, header: FrameHeader) -> bytes:
        """The answer to a frame that had been answered before."""
        frame = next(frame for frame in self._frames if frame.offset == header.offset)
        return self._encode(frame, header.step)

    def _apply(self, complete: Complete[Values]) -> bytes:
        frame = complete.frame
        total = self._scratch_values(frame.count)
        sum_in_rank_order(complete.contributions, total)
        assert self._optimizer is not None  # noqa: S101
        self._optimizer.update(
            frame.offset, frame.offset + frame.count, total, complete.step, scale=1.0 / len(complete.contributions)
        )
        answer = self._encode(frame, complete.step)
        with self._changed:
            self._ready().applied(frame)
            self._step = max(self._step, complete.step)
        return answer

    def _encode(self, frame: FrameSpec, step: int) -> bytes:
        header = FrameHeader(
            job=self._job.name,
            incarnation=self._incarnation,
            plan=self._plan.version if self._plan else 0,
            step=step,
            group=frame.group,
            offset=frame.offset,
            count=frame.count,
        )
        return encode_frame(header, (self._parameters[frame.offset : frame.offset + frame.count],))

    def _scratch_values(self, count: int) -> Values:
        """`count` values that belong to the calling thread."""
        if not hasattr(self._scratch, "values"):
            self._scratch.values = np.empty(self._frame_elements, dtype=np.float32)
        values: Values = self._scratch.values
        return values[:count]

    def _ready(self) -> Aggregator[Values]:
        if self._aggregator is None:
            raise StaleError("this server has no parameters yet; worker 0 initializes them first")
        return self._aggregator

    def _describe_non_finite(self, header: FrameHeader, values: Values) -> str:
        name = "a group unknown here"
        if self._plan is not None and header.group < len(self._plan.groups):
            group = self._plan.groups[header.group]
            layers = self._plan.layout.layers
            name = f"layers {layers[group.first_layer].name} to {layers[group.last_layer].name}"
        bad = int(np.count_nonzero(~np.isfinite(values)))
        return (
            f"worker {header.sender} pushed {bad} gradients that are not finite in {name} at step {header.step}; "
            "lower optimizer.learning_rate or check the data, or set exchange.non_finite = 'allow'"
        )
