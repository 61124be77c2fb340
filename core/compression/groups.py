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
from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.base.half import from_half, to_half
from taihu.kernels.half_sums import all_finite_half
from taihu.kernels.packing import pack, packed_bound
from taihu.kernels.packing.few_bits import STEP_BYTES, largest_multiple, pack_codes
from taihu.kernels.reduce import all_finite


@dataclass(frozen=True)
class Selection:
    """The values that are sent of one group: views into buffers, valid until the next group is compressed."""

    indices: NDArray[np.int32]
    values: NDArray[Any]
    outcome: Outcome


@dataclass(frozen=True)
class Packed:
    """A frame of a selection: views that are valid until the next one is packed.

    Attributes:
        count: of values.
        values: shape (count,), in the compressor's type, or packed codes of a few bits.
        sections: uint8, as in `taihu.core.wire.frames.headers.Frame`.
    """

    count: int
    values: NDArray[Any]
    sections: NDArray[np.uint8]


@dataclass(frozen=True)
class _Room:
    """The memory of the groups of one plan.

    Attributes:
        units: of each group, by number.
        layers: shape (units,): the first layer of each unit.
        indices, values: of what is selected of one group.
        packed, sections: of one frame of that.
    """

    units: list[range]
    layers: NDArray[np.intp]
    indices: NDArray[np.int32]
    values: NDArray[Any]
    packed: NDArray[Any]
    sections: NDArray[np.uint8]


def _room_for(compressor: Compressor, layout: Layout, units: Sequence[Unit], groups: Sequence[Group]) -> _Room:
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
        # A layer without elements begins where the next one does.
        np.searchsorted(layout.offsets, [unit.start for unit in units], side="right") - 1,
        np.empty(most, dtype=np.int32),
        values,
        np.empty_like(values),
        np.empty(largest * STEP_BYTES + packed_bound(most, largest), dtype=np.uint8),
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
        self._tells_nan = False
        self.value_type = ValueType.named(compressor.value_type)
        units = units_of_plan(compressor.unit, layout, groups)
        self.state = compressor.init(layout.elements, units)
        self._room = _room_for(compressor, layout, units, groups)

    def adopt(self, groups: Sequence[Group]) -> None:
        """Go on with other groups: residuals stay, and thresholds but those of layers that are merged otherwise."""
        units = units_of_plan(self._compressor.unit, self._layout, groups)
        self.state.rebind(units)
        self._room = _room_for(self._compressor, self._layout, units, groups)

    def compress(
        self,
        group: int,
        step: int,
        on_weighed: Callable[[Weighed], None] | None = None,
        rates: NDArray[np.float64] | None = None,
    ) -> Selection:
        """Select from the group's gradients, which are in the arena, and keep the rest for later.

        Args:
            group: its number.
            step: from 1.
            on_weighed: is told the balance, which takes copies of the group.
            rates: shape (layers,): the learning rate of each layer in this step, -1 where that is not known; None
                where what is held back does not follow it.
        """
        room = self._room
        self._tells_nan = False
        places = room.units[group]
        units = self.state.units[places.start : places.stop]
        weighing = None
        if on_weighed is not None and units:
            weighing = Weighing(self._compressor, self.state, units[0].start, units[-1].stop)
        if rates is not None:
            self.state.follow(places, rates[room.layers[places.start : places.stop]])
        if weighing is not None:
            weighing.follows()
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
            sent = self.decoded(Selection(indices, values, outcome))
            on_weighed(weighing.weighed(self._gradients, self._parameters, indices, sent))
        if units and self._forgets_non_finite:
            self._forget_non_finite(places, values)
        return Selection(indices, values, outcome)

    def decoded(self, selection: Selection) -> NDArray[np.float32]:
        """The values of the group that was compressed last, shape (n,), fp32, as who receives them decodes them."""
        values = self.taken(selection)
        return np.full_like(values, np.nan) if self._tells_nan else values

    def taken(self, selection: Selection) -> NDArray[np.float32]:
        """The same, as they were taken from what is held back: others may hear of NaN in their place."""
        values, outcome = selection.values, selection.outcome
        if self.value_type is ValueType.FP32:
            return values
        decoded = np.empty(len(values), dtype=np.float32)
        if (kind := self.value_type.half_kind) is not None:
            from_half(np.ascontiguousarray(values), kind, decoded)
        elif len(values):
            places, zero = self._room.units[outcome.units[0].group], largest_multiple(self.value_type.few_bits)
            steps = np.repeat(self.state.steps[places.start : places.stop].astype(np.float64), outcome.selected)
            np.copyto(decoded, (values.astype(np.float64) - zero) * steps, casting="same_kind")
        return decoded

    def _are_finite(self, places: range, values: NDArray[Any]) -> bool:
        if self.value_type.few_bits:
            return bool(np.isfinite(self.state.steps[places.start : places.stop]).all())
        kind = self.value_type.half_kind
        return all_finite(values) if kind is None else all_finite_half(values, kind)

    def _forget_non_finite(self, places: range, values: NDArray[Any]) -> None:
        """Hold nothing back that is not finite: there may be more of it than is sent, and it would never end."""
        start, stop = self.state.units[places[0]].start, self.state.units[places[-1]].stop
        is_left = not all_finite(self.state.residual[start:stop])
        is_sent = not self._are_finite(places, values)
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
        if self.value_type.few_bits:
            self._tells_nan = True
        elif (kind := self.value_type.half_kind) is None:
            np.copyto(place, nan)
        else:
            to_half(nan, kind, place)

    @property
    def tells_nan(self) -> bool:
        """Whether steps of few bits are told as NaN, since the last group has values that are not finite."""
        return self._tells_nan

    def tell_nan(self) -> None:
        """Tell steps of few bits as NaN until the next group is compressed."""
        self._tells_nan = True

    def kept(self, elements: int, step: int) -> int:
        """The number that the density of step `step` keeps of so many elements."""
        return self._compressor.kept(elements, step)

    def steps(self, selection: Selection, frame: FrameSpec) -> NDArray[np.float32]:
        """The steps of a frame's pieces, shape (pieces,), of a selection of a few bits; a copy."""
        starts = [unit.start for unit in selection.outcome.units]
        places = np.searchsorted(starts, frame.arena_bounds[:, 0], side="right") - 1
        return self.unit_steps(frame.group)[places]

    def unit_steps(self, group: int) -> NDArray[np.float32]:
        """The steps of few bits of the units of a group that was compressed last, shape (units,); a copy."""
        places = self._room.units[group]
        steps = self.state.steps[places.start : places.stop]
        return np.full_like(steps, np.nan) if self._tells_nan else steps.copy()

    def pack(self, selection: Selection, frame: FrameSpec) -> Packed:
        """One frame of a selection."""
        room, bounds, bits = self._room, frame.arena_bounds, self.value_type.few_bits
        steps_bytes = len(bounds) * STEP_BYTES if bits else 0
        sections = room.sections[steps_bytes:]
        count, size = pack(selection.indices, selection.values, bounds, room.packed, sections)
        if not bits:
            return Packed(count, room.packed[:count], room.sections[:size])
        to_half(self.steps(selection, frame), "bf16", room.sections[:steps_bytes].view(np.uint16))
        # A byte takes the codes of those behind it.
        packed = pack_codes(room.packed[:count], bits, room.packed)
        return Packed(count, room.packed[:packed], room.sections[: steps_bytes + size])
