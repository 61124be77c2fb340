"""Methods of compression: the ranges that share a threshold, how often it is made anew, the update common to all.

docs/methods.md section 1.1: the residual is added exactly once, the threshold is exact in the first update and reused
in the following ones, entries at or above it are sent, the others stay. Global Top-K and LAGS (Shi et al. 2019) make
it anew every time, for the whole model or each layer; DLGS for each group, every `refresh_every` updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kernels.select import (
    accumulate_select,
    clear,
    kth_largest_magnitude,
    momentum_select,
    put_back,
    select,
    take,
    take_rounded,
)
from taihu.compression.state import CompressionState, Unit, UnitKind, UnitReport
from taihu.settings import CompressionSettings, OptimizerSettings

__all__ = ["METHODS", "Compressor", "Method", "kept_elements", "make_compressor"]

Values = NDArray[np.float32]

_SLACK = 4
"""A reused threshold may select a quarter more or less than the density asks for."""


@dataclass(frozen=True)
class Method:
    """The traits of one method; `refresh_every` None leaves it to the settings."""

    unit: UnitKind
    refresh_every: int | None


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "none": Method("group", 1),
        "topk": Method("model", 1),
        "lags": Method("layer", 1),
        "dlgs": Method("group", None),
    }
)


def kept_elements(density: float, elements: int) -> int:
    """The number of values kept of `elements`: `max(1, ceil(density * elements))`, docs/methods.md section 1.1."""
    return min(elements, max(1, math.ceil(density * elements)))


def _most(kept: int) -> int:
    return kept + max(1, kept // _SLACK)


@dataclass(frozen=True)
class Compressor:
    """One method with its options: a pair (`init`, `update`) over explicit state.

    Attributes:
        method: which ranges share a threshold.
        density: share of the elements that is kept once the warm-up is over.
        refresh_every: updates between exact thresholds (s in docs/methods.md section 1.1).
        value_type: `fp32`, `fp16` or `bf16`; what rounding takes away stays in the residual.
        density_warmup_steps: the density falls exponentially from 1 to `density` within these steps.
        momentum, weight_decay, nesterov: applied before selection (momentum correction, Lin et al. 2018, section
            3.2); all zero when the servers do it.
        factor_masking: forget the velocity of what was sent (section 3.3 there). Without it density 1 is momentum
            SGD; with it, momentum ends wherever something is sent, so that at density 1 none is left.
        clip_norm: bound of the L2 norm of a unit's gradient, None for none (section 3.2 there; the norm of the whole
            gradient is known only after backward, so every unit is clipped on its own).
    """

    method: Method
    density: float
    refresh_every: int = 1
    value_type: Literal["fp32", "fp16", "bf16"] = "fp32"
    density_warmup_steps: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    factor_masking: bool = False
    clip_norm: float | None = None

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """Dtype of the selected values: fp32, or 16-bit codes."""
        return np.dtype(np.float32) if self.value_type == "fp32" else np.dtype(np.uint16)

    def init(self, elements: int, units: Sequence[Unit]) -> CompressionState:
        """State before the first step, for an arena of `elements` values."""
        velocity = elements if self.momentum or self.weight_decay else 0
        return CompressionState(
            tuple(units), np.zeros(elements, dtype=np.float32), np.zeros(velocity, dtype=np.float32)
        )

    def kept(self, elements: int, step: int) -> int:
        """The number that the density of step `step` (from 1) keeps of a unit's `elements`."""
        if step > self.density_warmup_steps:
            return kept_elements(self.density, elements)
        return kept_elements(self.density ** ((step - 1) / self.density_warmup_steps), elements)

    def most_selected(self, elements: int) -> int:
        """No update of a unit of `elements` values selects more than this."""
        if self.density_warmup_steps:
            return elements
        return min(elements, _most(kept_elements(self.density, elements)))

    def update(
        self,
        state: CompressionState,
        unit: int,
        step: int,
        *,
        gradient: Values,
        parameters: Values,
        indices: NDArray[np.int32],
        values: NDArray[Any],
    ) -> UnitReport:
        """Take in the gradient of one unit and select what is sent of it now.

        `residual + gradient` before equals `residual + decoded(values)` after, bit for bit; nothing is allocated.

        Args:
            state: changed in place.
            unit: index of the unit in `state.units`.
            step: number of this step, from 1.
            gradient: shape (n,), the arena; the unit's range is scaled in place when it is clipped.
            parameters: shape (n,), the arena; read for the weight decay.
            indices: room for `most_selected` positions; gets ascending positions in the arena.
            values: room for as many values of `value_dtype`; gets the values, or 16-bit codes.

        Returns:
            How many were selected, and the threshold. Values that are not finite are always selected.
        """
        where = state.units[unit]
        kept = self.kept(where.elements, step)
        age = state.ages[unit]
        stale = age < 0 or age + 1 >= self.refresh_every or kept != state.kept[unit]
        room = indices[: min(len(indices), _most(kept))]
        before = float(state.thresholds[unit])
        threshold = math.inf if stale else before
        # In fp32 what is selected moves while it is in the cache; rounding comes after.
        moved = values[: len(room)] if self.value_type == "fp32" else state.residual[:0]
        hits = self._accumulate(
            state, where, threshold, gradient=gradient, parameters=parameters, room=room, moved=moved
        )
        residual = state.residual[where.start : where.stop]
        # Nothing holds a reused threshold to the density: the count may leave its bounds before the refresh is due.
        refresh = stale or not kept - kept // _SLACK <= hits <= _most(kept)
        if refresh:
            put_back(residual, room[: min(hits, len(moved))], moved[:hits])
            threshold = kth_largest_magnitude(residual, kept)
            hits = select(residual, threshold, room)
        count = min(hits, len(room))
        if self.value_type != "fp32":
            take_rounded(residual, indices[:count], values[:count], self.value_type)
        elif refresh:
            take(residual, indices[:count], values[:count])
        if self.factor_masking and len(state.velocity):
            clear(state.velocity[where.start : where.stop], indices[:count])
        indices[:count] += np.int32(where.start)
        drift = math.nan
        if refresh:
            drift = abs(threshold - before) / before if age >= 0 and before > 0 else math.nan
            state.thresholds[unit], state.kept[unit] = threshold, kept
        state.ages[unit] = 0 if refresh else age + 1
        return UnitReport(step, unit, int(age) + 1, where.elements, kept, count, threshold, drift, refresh)

    def _accumulate(
        self,
        state: CompressionState,
        where: Unit,
        threshold: float,
        *,
        gradient: Values,
        parameters: Values,
        room: NDArray[np.int32],
        moved: Values,
    ) -> int:
        part = slice(where.start, where.stop)
        if self.clip_norm is not None:
            norm = math.sqrt(float(np.dot(gradient[part], gradient[part])))
            if norm > self.clip_norm:
                gradient[part] *= np.float32(self.clip_norm / norm)
        if not len(state.velocity):
            return accumulate_select(gradient[part], state.residual[part], threshold, room, moved)
        return momentum_select(
            gradient[part],
            parameters[part],
            state.velocity[part],
            state.residual[part],
            threshold,
            room,
            moved,
            self.momentum,
            self.weight_decay,
            self.nesterov,
            1.0,
        )


def make_compressor(
    settings: CompressionSettings, optimizer: OptimizerSettings, *, workers: int, momentum_here: bool
) -> Compressor:
    """The compressor of a job; `momentum_here` says whether the workers apply momentum and weight decay."""
    method = METHODS[settings.method]
    clip = settings.clip_norm
    return Compressor(
        method=method,
        density=1.0 if settings.method == "none" else settings.density,
        refresh_every=method.refresh_every or settings.refresh_every,
        value_type=settings.value_type,
        density_warmup_steps=settings.density_warmup_steps,
        momentum=optimizer.momentum if momentum_here else 0.0,
        weight_decay=optimizer.weight_decay if momentum_here else 0.0,
        nesterov=optimizer.nesterov and momentum_here,
        factor_masking=settings.factor_masking,
        clip_norm=None if clip is None else clip / math.sqrt(workers),
    )
