"""The compression of one bucket of DistributedDataParallel: what is held back, sent and summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.compression.groups import GroupCompressor, Selection
from taihu.core.compression.methods import Compressor
from taihu.core.compression.parcels import Parcels
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group

Values = NDArray[np.float32]
Indices = NDArray[np.int32]

_GLANCE = 256


@dataclass(frozen=True)
class HeldBack:
    """The memory of one parameter, which outlasts the bucket that it lies in.

    Attributes:
        residual: shape (n,), fp32, in the order of the parameter's memory: what has not been sent yet.
        threshold: of the parameter, if it has one of its own.
        age: updates since that was made, -1 where there is none.
        made_for: entries that it was made for.
        rate: the learning rate of the last exchange, -1 where that is not known.
    """

    residual: Values
    threshold: float = 0.0
    age: int = -1
    made_for: int = 0
    rate: float = -1.0


class Bucket:
    """One rank's part in the exchange of a bucket; one thread calls at a time.

    Args:
        compressor: the method.
        gradients: shape (n,), fp32: the bucket's memory, kept.
        held: of each parameter of the bucket in its order, n values together.
        ranks: that exchange.
        step: of the first exchange, from 1.
    """

    def __init__(
        self, compressor: Compressor, gradients: Values, held: Sequence[HeldBack], ranks: int, step: int = 1
    ) -> None:
        self._compressor = compressor
        self._gradients = gradients
        self._ranks = ranks
        sizes = [len(each.residual) for each in held]
        self._bounds = list(pairwise([0, *accumulate(sizes)]))
        layers = (LayerSpec(str(place), (TensorSpec("gradient", (size,)),)) for place, size in enumerate(sizes))
        whole = (Group(0, len(sizes) - 1),)
        self._group = GroupCompressor(
            compressor,
            Layout(tuple(layers)),
            whole,
            gradients=gradients,
            parameters=gradients,
            forgets_non_finite=True,
        )
        self._resume(held)
        units = self._group.state.units
        most = sum(compressor.most_selected(unit.elements) for unit in units)
        bounds = np.array([(unit.start, unit.stop) for unit in units], dtype=np.int64)
        self._parcels = Parcels(len(gradients), most, self._group.value_type, bounds)
        self.parcel = np.zeros(self._room_at(step), dtype=np.uint8)
        self.received = np.zeros((ranks, len(self.parcel)), dtype=np.uint8)

    def select(self, step: int, rates: NDArray[np.float64] | None = None) -> None:
        """Take in the gradients of step `step` (from 1), and have in `parcel` what is sent of them.

        Of a parameter whose gradient is zeros nothing is sent: where no rank has used it, nobody takes what comes.
        `rates`, shape (parameters,), are learning rates: what is held back counts for no more as they rise.
        """
        if step <= self._compressor.density_warmup_steps + 1 and (room := self._room_at(step)) != len(self.parcel):
            self.parcel = np.zeros(room, dtype=np.uint8)
            self.received = np.zeros((self._ranks, room), dtype=np.uint8)
        quiet = [bounds for bounds in self._bounds if self._is_quiet(*bounds)]
        selection = self._group.compress(0, step, rates=rates)
        indices, values = self._of_others(selection, quiet) if quiet else (selection.indices, selection.values)
        steps = self._group.unit_steps(0) if self._group.value_type.few_bits else None
        self._parcels.write(indices, values, self.parcel, steps)

    def mean(self) -> None:
        """Set the gradients to the mean of what is in `received`, one parcel of each rank, added in rank order.

        Raises:
            FrameError: a parcel is damaged.
        """
        self._parcels.sum(self.received, self._gradients)
        self._gradients *= np.float32(1.0 / self._ranks)

    def held_back(self) -> list[HeldBack]:
        """Copies of what is held back of each parameter."""
        arrays = self._group.state.arrays()
        places = {tuple(bounds): place for place, bounds in enumerate(arrays["bounds"].tolist())}
        found = []
        for start, stop in self._bounds:
            residual, rate = arrays["residual"][start:stop].copy(), self._group.state.rate_at(start)
            place = places.get((start, stop))
            if place is None:
                found.append(HeldBack(residual, rate=rate))
                continue
            threshold, age, made_for = (arrays[name][place] for name in ("thresholds", "ages", "kept"))
            found.append(HeldBack(residual, float(threshold), int(age), int(made_for), rate))
        return found

    def _resume(self, held: Sequence[HeldBack]) -> None:
        state = self._group.state
        state.resume(
            {
                "residual": np.concatenate([each.residual for each in held]),
                "velocity": state.velocity,
                "bounds": np.array(self._bounds, dtype=np.int64),
                "thresholds": np.array([each.threshold for each in held], dtype=np.float32),
                "ages": np.array([each.age for each in held], dtype=np.int64),
                "kept": np.array([each.made_for for each in held], dtype=np.int64),
                "rates": np.array([each.rate for each in held]),
            }
        )

    def _room_at(self, step: int) -> int:
        """Bytes of what step `step` (from 1) sends at most; all ranks come to the same."""
        units = self._group.state.units
        most = sum(self._compressor.most_selected_at(unit.elements, step) for unit in units)
        return self._parcels.room(most)

    def _is_quiet(self, start: int, stop: int) -> bool:
        part = self._gradients[start:stop]
        return not (part[:_GLANCE].any() or part.any())

    def _of_others(self, selection: Selection, quiet: Sequence[tuple[int, int]]) -> tuple[Indices, NDArray[Any]]:
        """The selection without these ranges, in which what was selected is held back again."""
        stays = np.zeros(len(selection.indices), dtype=np.bool_)
        for bounds in quiet:
            first, last = np.searchsorted(selection.indices, bounds)
            stays[first:last] = True
        values, back = selection.values[stays], self._group.taken(selection)[stays]
        is_finite = np.isfinite(back)
        self._group.state.residual[selection.indices[stays]] += np.where(is_finite, back, np.float32(0.0))
        indices, others = selection.indices[~stays], selection.values[~stays]
        few_bits = self._group.value_type.few_bits
        if few_bits and not is_finite.all():
            self._group.tell_nan()
        if self._group.tells_nan or not is_finite.all():
            # The mark that tells all ranks of a gradient that is not finite: here it would stay. Of few bits any code
            # is one, by its step.
            mark = np.zeros(1, dtype=values.dtype) if few_bits else values[~is_finite][:1]
            if len(others):
                others[:1] = mark
            else:
                loud = next(start for start, stop in self._bounds if (start, stop) not in quiet)
                indices, others = np.array([loud], dtype=np.int32), mark
        return indices, others
