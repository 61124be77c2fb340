"""The optimizers of a script, as servers carry them out: all but the learning rates, which come with each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from taihu.core.settings import OptimizerSettings

CONSTANTS: Final = ("name", "momentum", "nesterov", "beta1", "beta2", "epsilon")
"""Keys of the settings that all parameter groups of an optimizer have alike."""


@dataclass(frozen=True)
class UpdateRules:
    """The update rules of all parameters, and what parameter groups have of their own.

    Attributes:
        optimizers: their rules; learning rate, schedule and weight decay of these say nothing.
        weight_decays: of each parameter group.
        parameter_groups: for each layer of the layout the parameter group that it belongs to.
        owners: for each parameter group the position of its optimizer.
    """

    optimizers: tuple[OptimizerSettings, ...]
    weight_decays: tuple[float, ...]
    parameter_groups: tuple[int, ...]
    owners: tuple[int, ...]

    @classmethod
    def joined(cls, parts: Sequence[UpdateRules]) -> UpdateRules:
        """The rules of several, in their order: optimizers, parameter groups and layers of one behind the other."""
        optimizers: list[OptimizerSettings] = []
        decays: list[float] = []
        groups: list[int] = []
        owners: list[int] = []
        for part in parts:
            groups += (len(decays) + group for group in part.parameter_groups)
            owners += (len(optimizers) + owner for owner in part.owners)
            decays += part.weight_decays
            optimizers += part.optimizers
        return cls(tuple(optimizers), tuple(decays), tuple(groups), tuple(owners))

    def in_order(self, order: Sequence[int]) -> UpdateRules:
        """The same rules of layers in another order, `order[layer]` being the present number of each."""
        return replace(self, parameter_groups=tuple(self.parameter_groups[number] for number in order))

    @property
    def steps_by_parts(self) -> bool:
        """Whether a step may leave parameters as they are: those of one of several optimizers."""
        return len(self.optimizers) > 1

    def difference(self, expected: UpdateRules) -> str | None:
        """The first thing that `expected` has otherwise, in words; None where they are alike."""
        if difference := self._difference_of_optimizers(expected):
            return difference
        if len(self.weight_decays) != len(expected.weight_decays):
            seen, wanted = len(self.weight_decays), len(expected.weight_decays)
            return f"its optimizer has parameter groups: {seen}, expected {wanted}"
        for number, (seen_decay, decay) in enumerate(zip(self.weight_decays, expected.weight_decays, strict=True)):
            if seen_decay != decay:
                return f"parameter group {number} has weight_decay {seen_decay}, expected {decay}"
        if (self.parameter_groups, self.owners) != (expected.parameter_groups, expected.owners):
            return "its parameter groups hold other parameters"
        return None

    def _difference_of_optimizers(self, expected: UpdateRules) -> str | None:
        if len(self.optimizers) != len(expected.optimizers):
            return f"it has optimizers: {len(self.optimizers)}, expected {len(expected.optimizers)}"
        for own, other in zip(self.optimizers, expected.optimizers, strict=True):
            if own.rule != other.rule:
                return f"its optimizer is {own.name}, expected {other.name}"
            for key in own.rule.reads:
                if getattr(own, key) != getattr(other, key):
                    return f"{own.name} has {key} {getattr(own, key)}, expected {getattr(other, key)}"
        return None
