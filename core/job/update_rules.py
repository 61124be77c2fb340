"""The optimizer of a script, as servers carry it out: all of it but the learning rates, which come with each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taihu.core.settings import OptimizerSettings

__all__ = ["CONSTANTS", "UpdateRules"]

CONSTANTS: Final = ("name", "momentum", "nesterov", "beta1", "beta2", "epsilon")
"""Keys of the settings that all parameter groups have alike."""


@dataclass(frozen=True)
class UpdateRules:
    """The update rule of all parameters, and what parameter groups have of their own.

    Attributes:
        settings: the rule; its learning rate, schedule and weight decay say nothing.
        weight_decays: of each parameter group.
        parameter_groups: for each layer of the layout the parameter group that it belongs to.
    """

    settings: OptimizerSettings
    weight_decays: tuple[float, ...]
    parameter_groups: tuple[int, ...]

    def difference(self, expected: UpdateRules) -> str | None:
        """The first thing that `expected` has otherwise, in words; None where they are alike."""
        own, other = self.settings, expected.settings
        if own.rule != other.rule:
            return f"its optimizer is {own.name}, expected {other.name}"
        for key in own.rule.reads:
            if getattr(own, key) != getattr(other, key):
                return f"{own.name} has {key} {getattr(own, key)}, expected {getattr(other, key)}"
        if len(self.weight_decays) != len(expected.weight_decays):
            seen, wanted = len(self.weight_decays), len(expected.weight_decays)
            return f"its optimizer has parameter groups: {seen}, expected {wanted}"
        for number, (seen_decay, decay) in enumerate(zip(self.weight_decays, expected.weight_decays, strict=True)):
            if seen_decay != decay:
                return f"parameter group {number} has weight_decay {seen_decay}, expected {decay}"
        if self.parameter_groups != expected.parameter_groups:
            return "its parameter groups hold other parameters"
        return None
