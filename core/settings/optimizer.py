"""`[optimizer]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from taihu.core.settings.base import Count, Section
from taihu.core.traits.optimizers import OPTIMIZERS, SGD, Optimizer

Rate = Annotated[float, Field(gt=0, le=10_000)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Epochs = Annotated[float, Field(gt=0, le=10**6)]
Steps = Annotated[int, Field(ge=0, le=10**9)]


def rate_without(momentum: float) -> float:
    """The factor of SGD's rate behind a selection when its momentum goes.

    Momentum m makes an update 1 / (1 - m) times as large in the end. The rate takes over half of that: with all of it
    some runs diverge (docs/adr/0061).
    """
    return max(1.0, 0.5 / (1.0 - momentum))


class OptimizerSettings(Section):
    """`[optimizer]`: the update rule and its learning-rate schedule. Steps count from 1.

    A schedule in epochs, or to the run's end, takes the run's length from the workers' data when the run starts.

    `clip_norm` bounds the norm of one layer's gradient at a time, on each worker for itself; with `clip` whole that
    of the mean gradient of all layers, which is known when the last of them has been summed: no update begins before.
    `clip_norm` and `clip_value` do not go with sharded layers; compressed gradients have `compression.clip_norm`.
    """

    name: Annotated[Optimizer, OPTIMIZERS] = Field(default=SGD, description="the update rule")
    learning_rate: Rate = Field(
        default=0.05,
        description="the full learning rate, before the schedule lowers it; by default the model's own: "
        "cifar10_quick and vgg16_cifar 0.01, alexnet, vgg16, googlenet and resnet50 0.002, and 0.001 with adam "
        "and adamw",
    )
    momentum: Fraction = Field(default=0.9, description="sgd: the share of the last update that goes on")
    nesterov: bool = Field(default=False, description="sgd: Nesterov's momentum")
    weight_decay: Annotated[float, Field(ge=0, le=100)] = Field(
        default=0.0, description="L2 penalty; adamw: decay of the parameters themselves"
    )
    beta1: Fraction = Field(default=0.9, description="adam, adamw: decay of the mean of gradients")
    beta2: Fraction = Field(default=0.999, description="adam, adamw: decay of the mean of squared gradients")
    epsilon: Annotated[float, Field(ge=1e-30, le=1)] = Field(
        default=1e-8, description="adam, adamw: added to the root of the mean square"
    )
    clip_norm: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description="the largest norm of each layer's gradient, as each worker computes it, before it is "
        "exchanged; or what optimizer.clip says",
    )
    clip: Literal["layer", "whole"] = Field(
        default="layer",
        description="what clip_norm bounds: each layer's gradient, or the mean gradient of all layers together",
    )
    clip_value: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None, description="the largest magnitude of each element of the mean gradient, where it is applied"
    )
    schedule: Literal["constant", "step", "cosine"] = Field(
        default="constant", description="how the learning rate falls"
    )
    milestones: Annotated[tuple[Count, ...], Field(strict=False)] = Field(
        default=(), description="schedule step: the steps after which the rate is multiplied by gamma"
    )
    milestone_epochs: Annotated[tuple[Epochs, ...], Field(strict=False)] = Field(
        default=(), description="schedule step: the same in epochs, for example [80, 120]"
    )
    gamma: Annotated[float, Field(gt=0, le=10)] = Field(
        default=0.1, description="schedule step: the factor at a milestone"
    )
    decay_steps: Count | None = Field(
        default=None, description="schedule cosine: the step at which it ends; by default that of the run"
    )
    final_learning_rate: Annotated[float, Field(ge=0, le=10_000)] = Field(
        default=0.0, description="schedule cosine: the rate at its end"
    )
    warmup_steps: Steps = Field(default=0, description="steps in which the rate rises to its full value")
    warmup_epochs: Annotated[float, Field(ge=0, le=10**6)] = Field(default=0.0, description="the same in epochs")

    @model_validator(mode="after")
    def _schedule_is_complete(self) -> OptimizerSettings:
        if self.schedule == "step" and not (self.milestones or self.milestone_epochs):
            raise ValueError(
                "schedule 'step' needs optimizer.milestones, for example [800, 1200], or optimizer.milestone_epochs"
            )
        if self.milestones and self.milestone_epochs:
            raise ValueError("optimizer.milestones are in steps, milestone_epochs in epochs: give one of the two")
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("optimizer.warmup_steps and warmup_epochs are the same: give one of the two")
        if self.nesterov and ("nesterov" not in self.rule.reads or not self.momentum):
            raise ValueError("nesterov needs optimizer.name = 'sgd' and a momentum above 0")
        return self

    @property
    def rule(self) -> Optimizer:
        """The traits of the update rule."""
        return self.name

    @property
    def without_momentum(self) -> OptimizerSettings:
        """The same rule by the newest gradient alone, at the rate that goes with it.

        Of a linear rule momentum makes updates larger, which the rate takes over; others take means of gradients.
        """
        key = self.rule.momentum
        if not key or not getattr(self, key):
            return self
        grown = rate_without(getattr(self, key)) if self.rule.is_linear else 1.0
        rates = {each: getattr(self, each) * grown for each in ("learning_rate", "final_learning_rate")}
        return self.model_copy(update={key: 0.0, "nesterov": False, **rates})

    @property
    def state(self) -> tuple[str, ...]:
        """Names of the arrays that the rule keeps by these settings, each of a number per parameter."""
        needed = self.rule.state_needs
        return self.rule.state if not needed or getattr(self, needed) else ()
