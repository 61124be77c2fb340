"""The update that all methods of compression have in common (their traits: `taihu.core.traits.methods`).

docs/methods.md section 1.1: the residual is added exactly once, the threshold is exact in the first update and reused
in the following ones, entries at or above it are sent, the others stay. Global Top-K and LAGS (Shi et al. 2019) make
it anew every time, for the whole model or each layer; DLGS every `refresh_every` updates, for each layer, or for each
group where it is asked to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.compression.selecting import Select, accumulate
from taihu.core.compression.state import CompressionState, Outcome, Unit
from taihu.core.settings import CompressionSettings, OptimizerSettings
from taihu.core.settings.compression import ValueName
from taihu.core.traits.methods import Method, Threshold, UnitKind
from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.base.half import HALF_KINDS
from taihu.kernels.clip import scale, squared_norm
from taihu.kernels.packing.few_bits import FEW_BITS, take_multiples, warm_up
from taihu.kernels.selection.select import clear, take_rounded
from taihu.kernels.selection.unit_select import Arenas, Rule, most_of

Values = NDArray[np.float32]
Clip = Literal["unit", "whole"]

_SLACK: Final = 0.25


def kept_elements(density: float, elements: int) -> int:
    """The number of values kept of `elements`: `max(1, ceil(density * elements))`, docs/methods.md section 1.1."""
    return min(elements, max(1, math.ceil(density * elements)))


@dataclass(frozen=True)
class Compressor:
    """One method with its options: a pair (`init`, `update`) over explicit state.

    Attributes:
        method: its traits.
        density: share of the elements that is kept once the warm-up is over.
        refresh_every: updates between exact thresholds (s in docs/methods.md section 1.1).
        value_type: of what is sent; what rounding takes away stays in the residual. Those of a few bits are multiples
            of a step of their unit (`taihu.kernels.packing.few_bits`).
        density_warmup_steps: the density falls exponentially from 1 to `density` within these steps.
        momentum, weight_decay, nesterov: applied before selection (momentum correction, Lin et al. 2018, section
            3.2); all zero when the servers do it.
        factor_masking: forget the velocity of what was sent (section 3.3 there). Without it density 1 is momentum
            SGD; with it, momentum ends wherever something is sent, so that at density 1 none is left.
        clip_norm: bound of the L2 norm of what is clipped together, None for none (section 3.2 there).
        slack: a reused threshold may select that share more or less than the density asks for before it is made anew;
            inf for any number (the printed algorithm).
        clip: whether each unit's gradient is clipped on its own, or the whole one: its norm is known only after
            backward, when most of it has been sent, so that the norm of the step before stands for it.
    """

    method: Method
    density: float
    refresh_every: int = 1
    value_type: ValueName = "fp32"
    density_warmup_steps: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    factor_masking: bool = False
    clip_norm: float | None = None
    clip: Clip = "unit"
    threshold: Threshold = "layer"
    slack: float = _SLACK

    @property
    def unit(self) -> UnitKind:
        """The range from which the density keeps a share."""
        return self.method.unit_by(self.threshold)

    @cached_property
    def _select(self) -> Select:
        """The selection, looked up once."""
        select: Select = resolve_name(self.method.selection)
        return select

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """Dtype of the selected values: fp32, 16-bit codes, or codes of a few bits, one in each byte."""
        return np.dtype(np.uint8) if self.value_type in FEW_BITS else ValueType.named(self.value_type).dtype

    def init(self, elements: int, units: Sequence[Unit]) -> CompressionState:
        """State before the first step, for an arena of `elements` values."""
        velocity = elements if self.momentum or self.weight_decay else 0
        # Kernels are compiled, or loaded, before the first step.
        if self.value_type in FEW_BITS:
            warm_up()
        if self.clip == "whole":
            scale(np.zeros(1, dtype=np.float32), np.float32(squared_norm(np.zeros(1, dtype=np.float32))))
        return CompressionState(
            tuple(units), np.zeros(elements, dtype=np.float32), np.zeros(velocity, dtype=np.float32)
        )

    def kept(self, elements: int, step: int) -> int:
        """The number that the density of step `step` (from 1) keeps of a unit's `elements`."""
        return kept_elements(self._share(step), elements)

    def most_selected(self, elements: int) -> int:
        """No update of a unit of `elements` values selects more than this."""
        if self.density_warmup_steps:
            return elements
        return int(most_of(elements, kept_elements(self.density, elements), self.slack))

    def most_selected_at(self, elements: int, step: int) -> int:
        """The update of step `step` (from 1) selects no more of a unit of `elements` values than this."""
        return int(most_of(elements, self.kept(elements, step), self.slack))

    def update(
        self,
        state: CompressionState,
        units: range,
        step: int,
        *,
        gradient: Values,
        parameters: Values,
        indices: NDArray[np.int32],
        values: NDArray[Any],
    ) -> Outcome:
        """Take in the gradients of neighbouring units and select what is sent of them now.

        `residual + gradient` before equals `residual + decoded(values)` after, bit for bit; nothing is allocated that
        grows with the units. Different threads may update different units at the same time.

        Args:
            state: changed in place.
            units: indices of the units in `state.units`, one after the other.
            step: number of this step, from 1.
            gradient: shape (n,), the arena; the range of a unit that is clipped is scaled in place.
            parameters: shape (n,), the arena; read for the weight decay.
            indices: room for `most_selected` positions of every unit; gets ascending positions in the arena.
            values: room for as many values of `value_dtype`; gets the values, or their codes. The steps of those of a
                few bits are in `state.steps`.

        Returns:
            How many were selected, and the thresholds. Built-in methods always select what is not finite.

        Raises:
            ConfigError: the method's selection contradicts itself.
        """
        if self.clip_norm is not None:
            if self.clip == "whole":
                _clip_by_step_before(state, units, step, gradient, self.clip_norm)
            else:
                _clip_each(state.units[units.start : units.stop], gradient, self.clip_norm)
        count = self._select(
            state,
            units,
            step,
            Arenas(gradient, parameters, state.velocity, state.residual),
            self._rule(self._share(step)),
            indices,
            # In fp32 what is selected moves while it is in the cache; rounding comes after.
            values if self.value_type == "fp32" else state.residual[:0],
        )
        told = int(state.outcomes.selected[units.start : units.stop].sum())
        if count != told:
            raise ConfigError(
                f"compression '{self.method}': its selection returned {count} entries and told of {told} in "
                "outcomes.selected; see docs/own_methods.md"
            )
        if self.value_type != "fp32":
            self._take(state, units, indices[:count], values[:count])
        if self.factor_masking and len(state.velocity):
            clear(state.velocity, indices[:count])
        return state.outcome(step, units)

    def _take(self, state: CompressionState, places: range, indices: NDArray[np.int32], codes: NDArray[Any]) -> None:
        """Round what is selected of neighbouring units; the rest stays."""
        if self.value_type in HALF_KINDS:
            take_rounded(state.residual, indices, codes, self.value_type)
            return
        start = 0
        for place, count in zip(places, state.outcomes.selected[places.start : places.stop].tolist(), strict=True):
            of_unit = slice(start, start + count)
            start += count
            state.steps[place] = take_multiples(
                state.residual, indices[of_unit], codes[of_unit], FEW_BITS[self.value_type]
            )

    def accumulate(self, gradient: Values, parameters: Values, velocity: Values, residual: Values) -> None:
        """Add a gradient to `residual` as `update` does before it selects; arrays of shape (n,).

        `velocity` changes, too, and has length 0 without momentum. A gradient that is clipped comes so.
        """
        accumulate(Arenas(gradient, parameters, velocity, residual), self._rule(1.0))

    def _rule(self, share: float) -> Rule:
        momentum = (self.momentum, self.weight_decay, self.nesterov)
        return Rule(share, self.refresh_every, self.slack, *momentum)

    def _share(self, step: int) -> float:
        """The density of a step (from 1)."""
        if step > self.density_warmup_steps:
            return self.density
        return float(self.density ** ((step - 1) / self.density_warmup_steps))


def _clip_each(units: Sequence[Unit], gradient: Values, bound: float) -> None:
    for unit in units:
        part = gradient[unit.start : unit.stop]
        norm = math.sqrt(float(np.dot(part, part)))
        if norm > bound:
            part *= np.float32(bound / norm)


def _clip_by_step_before(state: CompressionState, places: range, step: int, gradient: Values, bound: float) -> None:
    """Scale units as if the norm of the whole gradient were that of the step before; in the first step, their own.

    Which units come first does not matter: a step reads the norms of the one before, and writes its own.
    """
    before = state.norm_before(step)
    for place in places:
        unit = state.units[place]
        part = gradient[unit.start : unit.stop]
        squared = squared_norm(part)
        state.squares[step % 2, place] = squared if math.isfinite(squared) else 0.0
        norm = before or math.sqrt(squared)
        if math.isfinite(norm) and norm > bound:
            scale(part, np.float32(bound / norm))


def make_compressor(
    settings: CompressionSettings, optimizer: OptimizerSettings, *, workers: int, momentum_here: bool
) -> Compressor:
    """The compressor of a job; `momentum_here` says whether the workers apply momentum and weight decay."""
    bound, together = settings.clip_norm, 1.0 if settings.clip == "whole" else math.sqrt(workers)
    return Compressor(
        method=settings.method,
        density=settings.share,
        refresh_every=settings.refresh_every if settings.method.reuses else 1,
        value_type=settings.value_type,
        density_warmup_steps=settings.density_warmup_steps,
        momentum=optimizer.momentum if momentum_here else 0.0,
        weight_decay=optimizer.weight_decay if momentum_here else 0.0,
        nesterov=optimizer.nesterov and momentum_here,
        factor_masking=settings.factor_masking,
        clip_norm=None if bound is None else bound / together,
        clip=settings.clip,
        threshold=settings.threshold,
        slack=settings.slack if settings.method.reuses else _SLACK,
    )
