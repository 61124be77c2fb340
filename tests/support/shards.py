"""A server's shard in this process, without a network, and the frames that workers would push to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.cluster import layout_of
from support.frames import changed, header_of
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.world import World
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec, Shard
from taihu.core.wire.frames.headers import At, Frame, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Question
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.kernels.base.half import HalfKind, from_half, to_half
from taihu.kernels.packing import pack, packed_bound, unpack
from taihu.ps_server.server_shard import ServerShard
from taihu.ps_server.updating import Answer

Values = NDArray[np.float32]
Step = Mapping[int, Sequence[Values]]
"""Pushes of the workers in one step: for every frame, by offset, each worker's gradient of all its elements."""

LAYOUT = layout_of(30, 7, 1, 64, 21)
GROUPS = (Group(0, 1), Group(2, 2), Group(3, 4))
OTHER_GROUPS = (Group(0, 2), Group(3, 3), Group(4, 4))
NOTHING = np.zeros(0, dtype=np.uint8)


SPARSE = {"method": "lags", "density": 0.2}
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "sgd": {"optimizer": {"momentum": 0.0}},
    "momentum": {"optimizer": {"momentum": 0.9, "weight_decay": 0.01}},
    "adam": {"optimizer": {"name": "adam"}},
    "bf16": {"train": {"precision": "bf16"}, "optimizer": {"momentum": 0.9}},
    "fp16": {"train": {"precision": "fp16"}, "optimizer": {"momentum": 0.9}},
    "zero 3": {"exchange": {"zero": 3}, "optimizer": {"momentum": 0.9}},
    "sparse push": {"compression": {**SPARSE, "downlink": "dense"}, "optimizer": {"name": "adam"}},
    "sparse pull": {"compression": {**SPARSE, "downlink": "exact"}},
    "squeezed": {"compression": {"method": "dlgs", "density": 0.2, "refresh_every": 3, "downlink": "doublesqueeze"}},
    "sums": {"exchange": {"zero": 0}},
}
"""One job for each way in which a server sums, updates and answers."""


class Clock:
    """Stands at 5 s."""

    def now(self) -> float:
        return 5.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nobody sleeps here, not for {seconds} s")


def make_plan(version: int = 1, from_step: int = 1, groups: Sequence[Group] = GROUPS, frame: int = 40) -> Plan:
    return Plan(version, from_step, tuple(groups), LAYOUT, frame, world=World(1, 2))


def shard_job(sections: Mapping[str, Mapping[str, Any]], *, workers: int = 2, servers: int = 1) -> Job:
    """A job of these sections; its rate is 0.1."""
    optimizer = {"learning_rate": 0.1, **sections.get("optimizer", {})}
    return Job.model_validate(
        {"cluster": {"servers": servers, "workers": workers}, **sections, "optimizer": optimizer}
    )


class Driven:
    """A shard with all its workers admitted, rank r in life 70 + r.

    Attributes:
        plans: the run's, the last of which is the present one.
        get_plan: what the shard is told of it.
    """

    def __init__(
        self, job: Job, *, seed: int = 0, index: int = 0, buffer: SharedBuffer | None = None, plan: Plan | None = None
    ) -> None:
        self.job = job
        self.partition = Shard(LAYOUT, job.servers, index)
        self.plans = [replace(plan or make_plan(), world=job.world)]
        self.get_plan: Callable[[], Plan] = lambda: self.plans[-1]
        self.parameters = np.random.default_rng(seed).standard_normal(self.partition.elements, dtype=np.float32)
        self.shard = ServerShard(
            job,
            self.partition,
            self.plans[0],
            self.parameters,
            buffer=buffer,
            incarnation=7,
            get_plan=self._plan_of_the_run,
            clock=Clock(),
        )
        for rank in range(job.cluster.workers):
            self.shard.admit(rank, 70 + rank)

    def _plan_of_the_run(self) -> Plan:
        return self.get_plan()

    @property
    def frames(self) -> tuple[FrameSpec, ...]:
        """Those of the run's present plan."""
        return self.partition.frames(self.plans[-1].groups, self.plans[-1].frame_elements)

    @property
    def kind(self) -> HalfKind | None:
        return ValueType.named(self.job.train.precision).half_kind

    def gradients(self, step: int, seed: int = 0) -> Step:
        """Gradients of all workers, of which every third is zero; 16 bits hold them exactly."""
        drawn = {}
        for frame in self.frames:
            rng = np.random.default_rng([seed, step, frame.offset])
            values = rng.integers(-20, 21, (self.job.cluster.workers, frame.count)).astype(np.float32) / 8
            values[rng.random(values.shape) < 1 / 3] = 0.0
            drawn[frame.offset] = list(values)
        return drawn

    def frame(self, spec: FrameSpec, rank: int, step: int, values: Values, **changes: Any) -> Frame:
        """Worker `rank`'s frame of gradients `values`, of the job's kind; `changes` are of its header."""
        header = header_of(
            incarnation=70 + rank,
            plan=self.plans[-1].version,
            step=step,
            group=spec.group,
            offset=spec.offset,
            elements=spec.count,
            rank=rank,
        )
        if self.kind is not None:
            codes = np.empty(spec.count, dtype=np.uint16)
            to_half(values * np.float32(changes.get("loss_scale", 1.0)), self.kind, codes)
            value_type = ValueType.named(self.job.train.precision)
            return Frame(changed(header, value_type=value_type, **changes), codes, NOTHING)
        if self.job.compression.method.key == "none":
            return Frame(changed(header, **changes), values, NOTHING)
        return sparse_frame(spec, changed(header, **changes), values)

    def question(self, spec: FrameSpec, rank: int, step: int, **changes: Any) -> FrameHeader:
        """A question for parameters."""
        address = At(self.plans[-1].version, step).range(spec)
        header = FrameHeader(Sender(70 + rank, rank), address, Question(), Encoding.NONE)
        return changed(header, **changes)

    def step(self, step: int, gradients: Step | None = None, **changes: Any) -> dict[int, Answer]:
        """A whole step, the last rank first; the answers by offset."""
        given = self.gradients(step) if gradients is None else gradients
        answers = {}
        for spec in self.frames:
            for rank, values in reversed(list(enumerate(given[spec.offset]))):
                outcome = self.shard.push(self.frame(spec, rank, step, values, **changes))
                if isinstance(outcome, Answer):
                    answers[spec.offset] = outcome
        assert len(answers) == len(self.frames)
        return answers


def driven(kind: str, **options: Any) -> Driven:
    """A shard of one of `KINDS`."""
    return Driven(shard_job(KINDS[kind]), **options)


def all_told(run: Driven, answers: Mapping[int, Answer]) -> dict[int, float]:
    """The values of a whole step's answers by element of the server's arena."""
    return {at: value for spec in run.frames for at, value in told(answers[spec.offset], spec).items()}


def sparse_frame(spec: FrameSpec, header: FrameHeader, values: Values) -> Frame:
    """The non-zero elements of `values`, shape (spec.count,)."""
    indices = (np.flatnonzero(values) + spec.offset).astype(np.int32)
    packed, sections = (
        np.empty(spec.count, np.float32),
        np.empty(packed_bound(spec.count, len(spec.pieces)), np.uint8),
    )
    count, size = pack(indices, values[values != 0], spec.shard_bounds, packed, sections)
    return Frame(replace(header, encoding=Encoding.SPARSE, selected=count), packed[:count], sections[:size])


def told(answer: Answer, spec: FrameSpec) -> dict[int, float]:
    """The values of an answer by element of the server's arena."""
    if answer.header.encoding in {Encoding.NONE, Encoding.SHARED}:
        assert not answer.pieces
        return {}
    if answer.header.encoding is Encoding.SPARSE:
        values, sections = answer.pieces
        indices = np.empty(answer.header.selected, dtype=np.int32)
        unpack(sections, spec.shard_bounds, len(values), indices)
        return dict(zip(indices.tolist(), values.tolist(), strict=True))
    (values,) = answer.pieces
    if (kind := answer.header.value_type.half_kind) is not None:
        codes, values = values, np.empty(len(values), dtype=np.float32)
        from_half(codes, kind, values)
    return dict(zip(range(spec.offset, spec.offset + spec.count), values.tolist(), strict=True))


def bits(answers: Mapping[int, Answer]) -> dict[int, tuple[FrameHeader, list[bytes]]]:
    """All that the answers say, at this moment."""
    return {at: (answer.header, [piece.tobytes() for piece in answer.pieces]) for at, answer in answers.items()}
