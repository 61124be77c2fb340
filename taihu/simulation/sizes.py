"""The bytes and seconds of a job's groups and frames, as its planner counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import planned_compression
from taihu.core.job import Job
from taihu.core.job.loose import check_simulated
from taihu.core.job.settled import check_without_script
from taihu.core.planner.partition import FrameSpec
from taihu.core.planner.profile import Profile
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.core.wire.frames.headers import ValueType
from taihu.simulation.machines import Machines

# What an update reads and writes beside the sum: state and parameters.
PASSES_OF_UPDATE: Final = 3
_FP32_BYTES: Final = 4
_NEVER: Final = 10**12


class Sizes:
    """Bytes of messages, and seconds of passes over groups, by a plan; `profile` has the costs of selecting.

    Attributes:
        value_bytes: of a dense value on the wire.
        selected_value_bytes: of a value that a worker selected, on the wire.
        add_rate: bytes that a host adds, or updates, in a second.
        selected_value_seconds: of a pass over values that were selected.
    """

    def __init__(self, job: Job, plan: Plan, profile: Profile, machines: Machines) -> None:
        check_without_script(job)
        check_simulated(job)
        self.add_rate = machines.add_bytes_per_second
        self.selected_value_seconds = machines.selected_value_seconds
        self._workers = job.world.workers
        self._layout = plan.layout
        self.value_bytes = ValueType.named(job.train.precision).dtype.itemsize
        self.selected_value_bytes = ValueType.named(job.compression.value_type).bytes_each
        self._is_sparse = job.compression.method.selects
        self._is_dense_down = not self._is_sparse or job.downlink == "dense"
        self._has_values_down = not job.stage.divides_parameters
        compression = planned_compression(job, plan.frame_elements)
        first, last = np.array([(group.first_layer, group.last_layer) for group in plan.groups]).T
        sizes = compression.sizes(profile, first, last)
        elements = np.maximum(sizes.elements, 1.0)
        self._up_per_element = (compression.up_bytes(profile, sizes) / elements).tolist()
        self._down_per_element = (compression.down_bytes(profile, sizes) / elements).tolist()
        self._kept_per_element = (sizes.kept / elements).tolist()
        self._compression, self._profile, self._sizes = compression, profile, sizes

    def selecting(self, *, by_steps: bool) -> tuple[Sequence[float], Sequence[float], Sequence[float], int]:
        """Seconds of selecting from each group: in the mean, exactly, and by thresholds that are used again.

        And `by_steps` the steps from one exact selection to the next; else, or without compression, 0.
        """
        own, profile = self._compression, self._profile
        ways = (
            (own, profile),
            (replace(own, refresh_every=1), profile),
            (replace(own, refresh_every=_NEVER), replace(profile, refresh_ratio=0.0)),
        )
        mean, exactly, again = (way.seconds(costs, self._sizes).tolist() for way, costs in ways)
        every = own.refresh_every if own.method.reuses else 1
        return mean, exactly, again, every if by_steps and self._is_sparse else 0

    def pushed(self, frame: FrameSpec) -> float:
        """Bytes of a frame on its way up."""
        if self._is_sparse:
            return float(self._up_per_element[frame.group] * frame.count)
        return HEADER_BYTES + frame.count * self.value_bytes

    def answered(self, frame: FrameSpec) -> float:
        """Bytes of the answer to it."""
        if not self._has_values_down:
            return HEADER_BYTES
        if self._is_dense_down:
            return self.parameters(frame)
        return float(self._down_per_element[frame.group] * frame.count)

    def parameters(self, frame: FrameSpec) -> float:
        """Bytes of its parameters."""
        return HEADER_BYTES + frame.count * self.value_bytes

    def added(self, frame: FrameSpec) -> float:
        """fp32 bytes that are added up for each worker."""
        return float(_FP32_BYTES * frame.count * self._kept_per_element[frame.group])

    def server_seconds(self, frame: FrameSpec) -> float:
        """Seconds of a server between the last gradient of a frame and its answer: sums, the update, packing."""
        seconds = (self._workers + PASSES_OF_UPDATE) * self.added(frame) / self.add_rate
        if not self._is_sparse:
            return seconds
        # Unpacked and added; gathered and packed.
        passes = 2.0 * self._workers * self.added(frame) / _FP32_BYTES
        if not self._is_dense_down:
            passes += 2.0 * self._changed(frame)
        return seconds + passes * self.selected_value_seconds

    def taking_seconds(self, frame: FrameSpec) -> float:
        """Seconds in which a worker unpacks an answer."""
        return 0.0 if self._is_dense_down else self._changed(frame) * self.selected_value_seconds

    def _changed(self, frame: FrameSpec) -> float:
        """The expected values that any worker selected."""
        return float(frame.count * (1.0 - (1.0 - self._kept_per_element[frame.group]) ** self._workers))

    def update_seconds(self, owners: int = 1) -> float:
        """Seconds of the update of all parameters, of which each of so many owners has its part."""
        return PASSES_OF_UPDATE * _FP32_BYTES * self._layout.elements / owners / self.add_rate
