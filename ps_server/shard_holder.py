"""The place of a server's shard: empty until worker 0 has brought all initial parameters, which are on their way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError, ModelError, PeerUnreachableError, StaleError, TaihuError
from taihu.core.chaos.points import Chaos
from taihu.core.checkpoint.keepers import resumed_from
from taihu.core.coordination.coordinator.checkpointing import held_steps_of
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.order import OrderFile, OrderHead
from taihu.core.history.recording import Recorder
from taihu.core.job import Job, settled
from taihu.core.model.layout import Layout
from taihu.core.planner.partition import Shard
from taihu.core.system.threads import Condition
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.kinds import Parameters
from taihu.core.wire.links.shared_memory import allocate_values
from taihu.core.wire.serving.staleness import StalenessCounts
from taihu.ps_server.meetings import Meetings
from taihu.ps_server.server_shard import ServerShard

Values = NDArray[np.float32]


class Initialization:
    """Initial parameters on their way in; `ShardHolder.adopt` makes a shard of them when every frame has come.

    With `shared` they lie in a `buffer` that other processes of this machine can map, if it has the memory.
    """

    def __init__(self, plan: Plan, partition: Shard, *, shared: bool) -> None:
        self.plan = plan
        self.partition = partition
        frames = partition.state_frames(plan.frame_elements)
        self.parameters, self.buffer = allocate_values(partition.elements, shared=shared)
        self._expected = len(frames)
        self._missing = {frame.offset: frame for frame in frames}

    def write(self, header: FrameHeader, values: Values) -> None:
        """Take in one frame.

        Raises:
            StaleError: the frame belongs to another plan.
            FrameError: it has no parameters, or is not one of the plan's frames that have not come yet.
        """
        header.expect(Parameters)
        sender, (at, _, offset, count) = header.sender, header.address
        if at.plan != self.plan.version:
            raise StaleError(f"initial frame of plan {at.plan}; expected plan {self.plan.version}")
        frame = self._missing.get(offset)
        if frame is None or frame.count != count or at.step != 0 or sender.rank != 0:
            raise FrameError(
                f"initial frame of {sender.label} at offset {offset} with {count} values "
                f"at step {at.step}: expected each frame of the plan once, at step 0, of worker 0"
            )
        del self._missing[offset]
        self.parameters[offset : offset + count] = values

    def check_complete(self) -> None:
        """Raise FrameError unless every frame has come."""
        if self._missing:
            raise FrameError(f"initial parameters: {len(self._missing)} of {self._expected} frames did not come")


class ShardHolder:
    """Holds the shard of server `index`, and lets others wait for it. Any thread may call.

    `get_plan` returns the run's present plan; it is called when the parameters arrive and when a frame of a later
    plan does. `recorder` gets the shard's history. Its steps are held as those of `generation`.
    `staleness` counts contributions where a step does not wait for all workers.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        incarnation: int,
        get_plan: Callable[[], Plan],
        clock: Clock | None = None,
        *,
        recorder: Recorder | None = None,
        chaos: Chaos | None = None,
        generation: int = 0,
        staleness: StalenessCounts | None = None,
    ) -> None:
        self._job = job
        self._staleness = staleness
        self._generation = generation
        self.index = index
        self._incarnation = incarnation
        self._get_plan = get_plan
        self._clock = clock
        self._recorder = recorder
        self._chaos = chaos
        self._changed = Condition()
        self._shard: ServerShard | None = None
        self._failure: TaihuError | None = None
        self._meetings = Meetings(job.world.workers)
        # The frames of the last meeting, encoded: the next one begins when all have gone on from it.
        self._read: tuple[bytes, ...] = ()

    @property
    def shard(self) -> ServerShard:
        """The shard; raises StaleError as long as there is none."""
        if self._shard is None:
            raise StaleError("this server has no parameters yet; worker 0 initializes them first")
        return self._shard

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
        self._check_empty()
        partition = Shard(layout, self._job.cluster.servers, self.index)
        return Initialization(plan, partition, shared=settled(self._job, plan.updates).shares_memory)

    def adopt(self, initial: Initialization) -> ServerShard:
        """Make the shard of complete initial parameters, for whoever waits for it.

        Raises:
            FrameError: they are not complete.
            StaleError: there is a shard already.
            CheckpointError: the job goes on from a checkpoint that lacks something.
        """
        initial.check_complete()
        job = settled(self._job, initial.plan.updates)
        shard = ServerShard(
            job,
            initial.partition,
            initial.plan,
            initial.parameters,
            held=held_steps_of(job, f"server {self.index}", self._generation, initial.plan),
            buffer=initial.buffer,
            incarnation=self._incarnation,
            get_plan=self._get_plan,
            clock=self._clock,
            recorder=self._recorder,
            chaos=self._chaos,
            order=self._order_of(job, initial),
            staleness=self._staleness,
        )
        shard.warm_up()
        begun = resumed_from(self._job)
        if begun is not None:
            shard.resume(begun)
        with self._changed:
            self._check_empty()
            self._shard = shard
            self._changed.notify_all()
        return shard

    def _order_of(self, job: Job, initial: Initialization) -> OrderFile | None:
        """The file that gets the order of the frames; None where nobody asks for it."""
        folder, plan, begun = job.order_folder, initial.plan, resumed_from(self._job)
        if folder is None:
            return None
        frames = initial.partition.frames(plan.groups, plan.frame_elements)
        head = OrderHead(
            job=job.digest,
            server=self.index,
            generation=self._generation,
            begun_after=0 if begun is None else begun.step,
            workers=plan.world.workers,
            elements=plan.layout.elements,
            frames=tuple(tuple((each.start, each.stop) for each in frame.pieces) for frame in frames),
        )
        return OrderFile(folder, head)

    def wait(self, timeout_s: float) -> ServerShard:
        """The shard, when it is there.

        Raises:
            PeerUnreachableError: it did not come in time.
            TaihuError: what `fail` was told.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._shard is not None or self._failure is not None, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self._shard is None:
                raise PeerUnreachableError(f"worker 0 brought no initial parameters within {timeout_s:g} s")
            return self._shard

    def meet(self, rank: int, timeout_s: float) -> tuple[bytes, ...]:
        """The parameters as they are when all workers stand between two steps; nothing where others have ended.

        Raises:
            TaihuError: what `fail` was told; or not all came in time.
        """
        with self._changed:
            meetings = self._meetings
            number = meetings.come(rank)
            self._await(lambda: meetings.is_over(number), timeout_s)
            return self._read if meetings.all_came(number) else ()

    def end(self, rank: int, timeout_s: float) -> tuple[bytes, ...]:
        """The parameters when all workers have made their last step; raises as `meet`."""
        with self._changed:
            self._meetings.end(rank)
            self._await(lambda: self._meetings.all_ended, timeout_s)
            return self._read

    def _await(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a meeting; whoever comes last reads the parameters for all, which go on changing at once."""
        if is_over():
            self._read_all()
        self._changed.notify_all()
        self._changed.wait_for(lambda: is_over() or self._failure is not None, timeout_s)
        if self._failure is not None:
            raise self._failure
        if not is_over():
            raise PeerUnreachableError(f"not all workers came to meet within {timeout_s:g} s")

    def _read_all(self) -> None:
        if (loose := self.shard.loose) is not None:
            loose.meet()
            self._read = tuple(self.shard.read())
            if self._meetings.all_ended:
                loose.end()

    def fail(self, error: TaihuError) -> None:
        """Make every present and later `wait` raise `error`."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def stop_sharing(self) -> None:
        """Remove the name of the parameters' memory, if there is any."""
        if self._shard is not None:
            self._shard.stop_sharing()

    def stop_holding(self) -> None:
        """Hold no steps any more, if there are any."""
        if self._shard is not None:
            self._shard.stop_holding()

    def _check_empty(self) -> None:
        if self._shard is not None:
            raise StaleError("the parameters have been initialized already; only worker 0 does so, once")
