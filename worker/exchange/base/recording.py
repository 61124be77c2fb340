"""The history of a worker's exchange: what it pushes, selects, updates and reads, if anybody records that."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression import GroupCompressor, Selection
from taihu.core.compression.balance import Weighed
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.digest import Digest, Values, bits_of, digest_at, digest_of
from taihu.core.history.recording import Recorder, as_fp32, balance_of
from taihu.core.history.records import ALL, Push, Read, Returned, Skip
from taihu.core.planner.groups import group_bounds
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import At
from taihu.kernels.base.half import to_half
from taihu.worker.memory.arenas import Arenas


class Recording:
    """Records what a worker does with its arenas.

    Whoever passes it looks at `enabled` before the call: none of it runs where nobody records.
    """

    def __init__(self, recorder: Recorder, arenas: Arenas) -> None:
        self.enabled = recorder.enabled
        self._recorder = recorder
        self._arenas = arenas
        self._kind = arenas.value_type.half_kind
        self._bounds: list[NDArray[np.int64]] = []
        self._last_read = (0, -1)

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan."""
        self._last_read = (0, -1)
        self._bounds = [np.array([bounds]) for bounds in group_bounds(plan.layout, plan.groups)]

    def pushed(self, group: int, at: At) -> None:
        """The group's gradients are about to be sent."""
        bounds = self._bounds[group]
        start, stop = map(int, bounds[0])
        values = digest_of(as_fp32(self._arenas.sent[start:stop], self._kind), bounds)
        self._recorder.add(Push(at.step, at.attempt, group, start, stop - start, values))

    def compress(
        self, compressor: GroupCompressor, group: int, at: At, rates: NDArray[np.float64] | None
    ) -> Selection:
        """Have the group compressed, which is sent then; `rates` as `GroupCompressor.compress` takes them."""
        bounds = self._bounds[group]
        start, stop = map(int, bounds[0])

        def weighed(balance: Weighed) -> None:
            values, kept = digest_of(balance.sent, bounds), balance_of(balance, bounds)
            push = Push(at.step, at.attempt, group, start, stop - start, values, kept)
            self._recorder.add(push)

        return compressor.compress(group, at.step, weighed, rates)

    def skipped(self, at: At) -> None:
        """All workers have agreed to push nothing in this step."""
        self._recorder.add(Skip(at.step))

    def read(self, group: int, step: int) -> None:
        """The group's parameters are in the arena as they are after `step`."""
        # Each layer of a group asks for it anew.
        if (group, step) != self._last_read:
            self._last_read = group, step
            bounds = self._bounds[group]
            start, stop = map(int, bounds[0])
            seen = bits_of(self._arenas.parameters[start:stop], bounds)
            self._recorder.add(Read(step, group, start, stop - start, seen))

    def updating(
        self, step: int, group: int, start: int, parameters: Values, gradient: Values
    ) -> AbstractContextManager[None]:
        """The block updates `parameters`, the elements from `start` on, by `gradient`; both of shape (n,)."""
        bounds = np.array([[start, start + len(parameters)]])

        def seen() -> Values:
            assert self._kind is not None  # noqa: S101
            codes = np.empty(len(parameters), dtype=np.uint16)
            to_half(parameters, self._kind, codes)
            return as_fp32(codes, self._kind)

        def digest() -> Digest:
            return digest_of(gradient, bounds)

        return self._recorder.updating(step, group, bounds, parameters, digest, None if self._kind is None else seen)

    def updating_all(self, step: int, gradients: Values) -> AbstractContextManager[None]:
        """The block updates all parameters of the arena."""
        return self.updating(step, ALL, 0, self._arenas.parameters, gradients)

    def updating_sparse(
        self, step: int, frame: FrameSpec, places: NDArray[np.int32], gradient: Values
    ) -> AbstractContextManager[None]:
        """The block updates a frame by what was summed at `places` of the arena."""
        bounds = np.array([[frame.offset, frame.offset + frame.count]])
        parameters = self._arenas.parameters[frame.offset : frame.offset + frame.count]
        return self._recorder.updating(step, frame.group, bounds, parameters, lambda: digest_at(gradient, places))

    def residual_bits(self, frame: FrameSpec, residual: Values) -> int:
        """Bits of the residual in a frame's range, for `returned`."""
        return bits_of(
            residual[frame.offset : frame.offset + frame.count], [(frame.offset, frame.offset + frame.count)]
        )

    def returned(  # noqa: PLR0917 - an address, what came back, and where it went
        self, step: int, frame: FrameSpec, places: NDArray[np.int32], values: Values, residual: Values, before: int
    ) -> None:
        """Values that the sum of a frame rejected have been added to the residual, whose bits were `before`."""
        if len(places):
            after = self.residual_bits(frame, residual)
            digest = digest_at(values, places)
            self._recorder.add(Returned(step, frame.group, frame.offset, frame.count, digest, before, after))
