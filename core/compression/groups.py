"""Groups of a gradient arena are compressed, and what was selected is packed into frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression.balance import Weighed, Weighing
from taihu.core.compression.methods import Compressor
from taihu.core.compression.state import Outcome, Unit, units_of_plan
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.headers import ValueType
from taihu.kernels.half import to_half
from taihu.kernels.half_sums import all_finite_half
from taihu.kernels.pack import pack, packed_bound
from taihu.kernels.reduce import all_finite

__all__ = ["GroupCompressor", "Selection"]


@dataclass(frozen=True)
class Selection:
    """The values that are sent of one group: views into buffers, valid until the next group is compressed."""

    indices: NDArray[np.int32]
    values: NDArray[Any]
    outcome: Outcome


@dataclass(frozen=True)
class _Room:
    """The memory of the groups of one plan.

    Attributes:
        units: of each group, by number.
        indices, values: of what is selected of one group.
        packed, sections: of one frame of that.
    """

    units: list[range]
    indices: NDArray[np.int32]
    values: NDArray[Any]
    packed: NDArray[Any]
    sections: NDArray[np.uint8]


def _room_for(compressor: Compressor, units: Sequence[Unit], groups: Sequence[Group]) -> _Room:
    room = [0] * len(groups)
    ends = [0] * len(groups)
    for index, unit in enumerate(units):
        ends[unit.group] = index + 1
        room[unit.group] += compressor.most_selected(unit.elements)
    most = max(room, default=0)
    largest = max((group.last_layer - group.first_layer + 1 for group in groups), default=0)
    values = np.empty(most, dtype=compressor.value_dtype)
    return _Room(
        [range(start, stop) for start, stop in pairwise([0, *accumulate(ends, max)])],
        np.empty(most, dtype=np.int32),
        values,
        np.empty_like(values),
        np.empty(packed_bound(most, largest), dtype=np.uint8),
    )


class GroupCompressor:
    """One worker's compression: the method, its state, and buffers that are allocated once for each plan.

    One thread compresses; the state may be read when nothing is under way.

    Args:
        compressor: the method.
        layout: of the arenas.
        groups: of the first plan.
        gradients: the arena, shape (elements,), fp32; see `Compressor.update`.
        parameters: the arena, shape (elements,), fp32.
        forgets_non_finite: of a group with values that are not finite some are sent, so that all workers know, and
            none are held back. That takes another look at all values.
    """

    def __init__(
        self,
        compressor: Compressor,
        layout: Layout,
        groups: Sequence[Group],
        *,
        gradients: NDArray[np.float32],
        parameters: NDArray[np.float32],
        forgets_non_finite: bool = False,
    ) -> None:
        self._compressor = compressor
        self._layout = layout
        self._gradients = gradients
        self._parameters = parameters
        self._forgets_non_finite = forgets_non_finite
        self.value_type = ValueType.named(compressor.value_type)
        units = units_of_plan(compressor.unit, layout, groups)
        self.state = compressor.init(layout.elements, units)
        self._room = _room_for(compressor, units, groups)

    def adopt(self, groups: Sequence[Group]) -> None:
        """Go on with other groups: residuals stay, and thresholds but those of layers that are merged otherwise."""
        units = units_of_plan(self._compressor.unit, self._layout, groups)
        self.state.rebind(units)
        self._room = _room_for(self._compressor, units, groups)

    def compress(self, group: int, step: int, on_weighed: Callable[[Weighed], None] | None = None) -> Selection:
        """Select from the group's gradients, which are in the arena, and keep the rest for later.

        `on_weighed` is told the balance, which takes copies of the group.
        """
        room = self._room
        places = room.units[group]
        units = self.state.units[places.start : places.stop]
        weighing = None
        if on_weighed is not None and units:
            weighing = Weighing(self._compressor, self.state, units[0].start, units[-1].stop)
        outcome = self._compressor.update(
            self.state,
            places,
            step,
            gradient=self._gradients,
            parameters=self._parameters,
            indices=room.indices,
            values=room.values,
        )
        count = int(outcome.selected.sum())
        indices, values = room.indices[:count], room.values[:count]
        if weighing is not None and on_weighed is not None:
            on_weighed(weighing.weighed(self._gradients, self._parameters, indices, values))
        if units and self._forgets_non_finite:
            self._forget_non_finite(units[0].start, units[-1].stop, values)
        return Selection(indices, values, outcome)

    def _are_finite(self, values: NDArray[Any]) -> bool:
        kind = self.value_type.half_kind
        return all_finite(values) if kind is None else all_finite_half(values, kind)

    def _forget_non_finite(self, start: int, stop: int, values: NDArray[Any]) -> None:
        """Hold nothing back that is not finite: there may be more of it than is sent, and it would never end."""
        is_left = not all_finite(self.state.residual[start:stop])
        is_sent = not self._are_finite(values)
        if is_left and not is_sent:
            # Equal values before it took its room. All workers are to know.
            self._put_nan(values[:1])
        if not is_left and not is_sent:
            return
        for kept in (self.state.residual, self.state.velocity):
            part = kept[start:stop]
            part[~np.isfinite(part)] = 0.0

    def _put_nan(self, place: NDArray[Any]) -> None:
        nan = np.array([np.nan], dtype=np.float32)
        if (kind := self.value_type.half_kind) is None:
            np.copyto(place, nan)
        else:
            to_half(nan, kind, place)

    def kept(self, elements: int, step: int) -> int:
        """The number that the density of step `step` keeps of so many elements."""
        return self._compressor.kept(elements, step)

    def pack(self, selection: Selection, frame: FrameSpec) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The values and sections of one frame; views that are valid until the next call."""
        room = self._room
        count, size = pack(selection.indices, selection.values, frame.arena_bounds, room.packed, room.sections)
        return room.packed[:count], room.sections[:size]
