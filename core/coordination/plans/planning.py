"""The run's plan: made before the first step, and anew from what all workers measured. Pure; no threads or clocks.

Workers report after the same steps and wait for the answer, so that the plan which they get holds from the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from taihu.core.base.errors import FrameError, StaleError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.windows import Windows
from taihu.core.job import Job
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.planner.calibration import calibrate, with_measured_bytes
from taihu.core.planner.carriage import Carriage, faster_carrier, first_carriage, steps_by
from taihu.core.planner.decide import best_frame_elements, decide, predict
from taihu.core.planner.fc_mode import FcLayer
from taihu.core.planner.groups import Group, cap_groups, cut_at_kinds, plan_groups
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.planner.partition import SPARSE_FRAME_ELEMENTS
from taihu.core.planner.profile import Compression, LinkCost, Profile
from taihu.core.planner.sparse_route import SPARSE_ROUTES, SparseAlgorithm, SparseWorkload, choose
from taihu.core.wire.frames.headers import BYTES_PER_VALUE, ValueType
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES

_COMPUTED = ("auto", "greedy", "exact")
_WORTHWHILE_GAIN = 0.05
FRAME_BYTES = 1 << 19
_WAITING_BYTES = 64 << 20
_BUCKETS = "bucket:100kB"


def is_computed(strategy: str) -> bool:
    """Whether `exchange.plan` asks for a plan from measurements."""
    return strategy in _COMPUTED


def first_plan(job: Job, layout: Layout, *, one_host: bool) -> Plan:
    """The plan before anything has been measured; `one_host` says that only this machine's processes take part.

    Where it will be computed, every layer is a group of its own at first: that gives costs of many sizes. Where the
    timeline does not know the job's exchange, groups are buckets.
    """
    groups = _capped(job, layout, plan_groups(layout, _first_strategy(job)))
    routes = sparse_routes(job, layout, groups, LinkCost(0.0, 1.0, 0.0))
    carriage = first_carriage(
        job.exchange.transport,
        one_host=one_host,
        waits_for_groups=_computes(job),
    )
    frame_elements = frame_elements_of(job, one_host=one_host)
    return Plan(1, 1, groups, layout, frame_elements, routes, carriage=carriage, world=job.world)


def _first_strategy(job: Job) -> str:
    if _computes(job):
        return "per-layer"
    if not is_computed(job.exchange.plan):
        return job.exchange.plan
    # The first matrices of a product are to be on their way while backward goes on.
    return _BUCKETS if job.compression.method.codes else "single"


def _computes(job: Job) -> bool:
    """Whether layers are merged as is found best."""
    return _asks_links(job) and not job.compression.method.is_of_whole_model


def _asks_links(job: Job) -> bool:
    """Whether the plan follows from what links are measured to do."""
    return is_computed(job.exchange.plan) and job.plans_by_measuring


def _capped(job: Job, layout: Layout, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """No group has layers of several kinds, nor is larger than a bucket where its memory is given back."""
    groups = cut_at_kinds(groups, layout)
    if not job.stage.divides_gradients:
        return groups
    return cap_groups(groups, layout, job.bucket_bytes(layout.elements) // BYTES_PER_VALUE)


def sparse_routes(job: Job, layout: Layout, groups: Sequence[Group], link: LinkCost) -> tuple[SparseAlgorithm, ...]:
    """The sparse allreduce of each group that is predicted to be the fastest; none where none is needed."""
    if job.servers or not job.compression.method.selects:
        return ()
    routes = []
    for group in groups:
        workload = SparseWorkload(
            elements=layout.offsets[group.last_layer + 1] - layout.offsets[group.first_layer],
            density=job.compression.share,
            ranks=job.world.workers,
            alpha_seconds=link.alpha_seconds,
            seconds_per_byte=link.up_seconds_per_byte,
            value_bytes=ValueType.named(job.compression.value_type).bytes_each,
        )
        routes.append(choose(workload, allow_gtopk=job.takes_back, among=SPARSE_ROUTES))
    return tuple(routes)


def frame_elements_of(job: Job, *, one_host: bool = False) -> int:
    """The most elements that a frame of the exchange covers before links are measured.

    A small one is soon answered on a link, while shared memory has no use for that and each message costs time.
    """
    sparse = job.downlink != "dense" or (not job.servers and job.compression.method.selects)
    if job.exchange.frame_bytes is not None:
        named = job.exchange.frame_bytes // BYTES_PER_VALUE
        return min(named, SPARSE_FRAME_ELEMENTS) if sparse else named
    if sparse:
        return SPARSE_FRAME_ELEMENTS
    return (MAX_PAYLOAD_BYTES if one_host and job.shares_memory else FRAME_BYTES) // BYTES_PER_VALUE


def largest_frame_bytes(job: Job, elements: int) -> int:
    """Bytes of the largest dense frame that links may want, of a model of so many elements.

    Those that all workers may have on their way to one server take it 64 MiB, or as much as frames of 512 KiB do.
    """
    if job.exchange.frame_bytes is not None:
        return job.exchange.frame_bytes
    whole = elements * BYTES_PER_VALUE // max(1, job.servers)
    room = _WAITING_BYTES // (job.world.workers * job.exchange.window_frames)
    return max(FRAME_BYTES, min(MAX_PAYLOAD_BYTES, whole, room))


class Planning:
    """`plan` is what holds now, `profile` the costs that it was made from, None before the first report.

    `on_measured` is told of the costs that each report leads to, and of the seconds of a step.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        *,
        one_host: bool = False,
        length: RunLength | None = None,
        updates: UpdateRules | None = None,
        begun_after: int = 0,
        on_measured: Callable[[Profile, float], None] | None = None,
    ) -> None:
        self._job = job
        self._on_measured = on_measured
        first = first_plan(job, layout, one_host=one_host)
        self.plan = replace(first, length=length, updates=updates, from_step=begun_after + 1)
        self.profile: Profile | None = None
        self._one_host = one_host
        self._is_auto = job.exchange.transport == "auto"
        self._windows = Windows()
        self._decided_after = 0
        self._reports: dict[int, Sequence[StepMeasurement]] = {}
        self._reported_step = 0

    def decided_after(self, step: int) -> bool:
        """Whether the plan takes in the reports that followed step `step`."""
        return self._decided_after >= step

    def report(self, rank: int, step: int, steps: Sequence[StepMeasurement]) -> None:
        """Take in what worker `rank` measured until `step`; the last worker's report makes the plan.

        Raises:
            StaleError: the report belongs to another step than those of the others.
            FrameError: it does not fit the plan.
        """
        if step <= self._decided_after or (self._reports and step != self._reported_step):
            raise StaleError(
                f"worker {rank} reports after step {step}: expected one step with the others, after step "
                f"{max(self._decided_after, self._reported_step)}"
            )
        self._check(rank, steps)
        self._reported_step = step
        self._reports[rank] = tuple(steps)
        if len(self._reports) == self.plan.world.workers:
            reports = [self._reports[rank] for rank in sorted(self._reports)]
            self._reports = {}
            self._decide(step, reports)
            self._decided_after = step

    def _check(self, rank: int, steps: Sequence[StepMeasurement]) -> None:
        layers, groups = len(self.plan.layout.layers), len(self.plan.groups)
        for step in steps:
            if len(step.backward_seconds) != layers or len(step.groups) != groups:
                raise FrameError(
                    f"worker {rank} reports {len(step.backward_seconds)} layers and {len(step.groups)} groups of "
                    f"step {step.step}: expected {layers} and {groups}"
                )

    def _decide(self, step: int, reports: Sequence[Sequence[StepMeasurement]]) -> None:
        carriage = self._next_carriage(reports)
        if self.plan.carriage == "trial" and carriage != "trial":
            reports = steps_by(carriage, reports)
        if self._job.updates_together:
            # No step exchanges one group at a time, so that there is nothing to tell the costs of links from.
            self._change(step, carriage=carriage)
            return
        names = [layer.name for layer in self.plan.layout.layers]
        elements = [layer.elements for layer in self.plan.layout.layers]
        compression = planned_compression(self._job, self.plan.frame_elements)
        groups = self.plan.groups
        profile = calibrate(
            names,
            elements,
            reports,
            servers=self._job.servers,
            frame_elements=self.plan.frame_elements,
            previous=self.profile,
        )
        profile = with_measured_bytes(profile, compression, groups, reports)
        profile = replace(
            profile,
            fc_layers=_fully_connected(self.plan.layout),
            batch=self._job.train.batch,
            local_steps=self._job.exchange.local_steps,
            dense_value_bytes=4 if self._job.train.precision == "fp32" else 2,
            compute=self._job.cluster.compute,
            carriage="" if self._one_host else carriage,
        )
        measured_s = _seconds_of(reports)
        self._windows.note(groups, measured_s)
        self.adopt(step, profile, carriage)
        if self._on_measured is not None:
            self._on_measured(profile, measured_s)

    def adopt(self, step: int, profile: Profile, carriage: Carriage) -> None:
        """Plan by costs that hold after `step`."""
        groups = self.plan.groups
        compression = planned_compression(self._job, self.plan.frame_elements)
        frame_elements = self._frames_for_links(profile, compression)
        compression = planned_compression(self._job, frame_elements)
        seconds = predict(profile, compression, groups) if self._job.plans_by_measuring else 0.0
        if _computes(self._job):
            decided = decide(profile, compression, self._job.exchange.plan).groups
            better = _capped(self._job, self.plan.layout, decided)
            better_seconds = predict(profile, compression, better)
            if self.profile is None or better_seconds < seconds * (1.0 - _WORTHWHILE_GAIN):
                groups = better
            groups = self._windows.best(groups)
            seconds = predict(profile, compression, groups)
        routes = sparse_routes(self._job, self.plan.layout, groups, profile.link)
        self.profile = profile
        self._change(step, groups=groups, frame_elements=frame_elements, routes=routes, carriage=carriage)
        self.plan = replace(self.plan, predicted_seconds=seconds)

    def _next_carriage(self, reports: Sequence[Sequence[StepMeasurement]]) -> Carriage:
        """A trial follows the first report where that merges layers, and the next report decides it."""
        if self.plan.carriage == "trial":
            return faster_carrier(reports)
        own = self.plan.carriage
        return "trial" if self._is_auto and own == "grpc" and not self._decided_after else own

    def _change(
        self,
        step: int,
        *,
        carriage: Carriage,
        groups: tuple[Group, ...] | None = None,
        frame_elements: int | None = None,
        routes: tuple[SparseAlgorithm, ...] | None = None,
    ) -> None:
        """The plan after `step`; None stays as it is."""
        own = self.plan
        plan = replace(
            own,
            groups=own.groups if groups is None else groups,
            frame_elements=own.frame_elements if frame_elements is None else frame_elements,
            routes=own.routes if routes is None else routes,
            carriage=carriage,
        )
        self.plan = own if plan == own else replace(plan, version=own.version + 1, from_step=step + 1)

    def _frames_for_links(self, profile: Profile, compression: Compression) -> int:
        """The first profile tells what frames the links want, whatever merges the groups."""
        own = self.plan.frame_elements
        named = self._job.exchange.frame_bytes is not None
        # DoubleSqueeze selects by frames, and sums are rounded by them: results would depend on what was measured.
        by_frames = self._job.downlink == "doublesqueeze" or self._job.compression.rounds_sums
        is_measured = self._job.plans_by_measuring and not self._one_host and self.profile is None
        if named or by_frames or not is_measured or not self._job.servers:
            return own
        # What is selected may be all of it, and takes more than its values: it keeps to a size that holds that.
        is_selected = self._job.compression.method.selects
        largest = own if is_selected else largest_frame_bytes(self._job, self.plan.layout.elements) // BYTES_PER_VALUE
        return best_frame_elements(profile, compression, own, largest, self._job.exchange.window_frames)


def _seconds_of(reports: Sequence[Sequence[StepMeasurement]]) -> float:
    """Seconds of a step that exchanges groups as ever, the median of the slowest worker; 0 where there was none."""
    by_worker = ([step.seconds for step in steps if not step.serial] for steps in reports)
    return max((median(seconds) for seconds in by_worker if seconds), default=0.0)


def _fully_connected(layout: Layout) -> tuple[FcLayer, ...]:
    """Layers whose weights are matrices, in forward order."""
    matrices = ((layer.name, layer.tensors[0].shape) for layer in reversed(layout.layers) if layer.tensors)
    return tuple(FcLayer(name, shape[0], shape[1]) for name, shape in matrices if len(shape) == 2)


def planned_compression(job: Job, frame_elements: int) -> Compression:
    """The job's compression as the planner sees it."""
    settings = job.compression
    return Compression(
        method=settings.method,
        density=settings.share,
        refresh_every=settings.refresh_every,
        value_bytes=ValueType.named(settings.value_type).bytes_each,
        downlink=job.downlink,
        down_value_bytes=ValueType.named(settings.downlink_value_type).bytes_each,
        frame_bytes=frame_elements * BYTES_PER_VALUE,
        threshold=settings.threshold,
    )
