"""`[train]`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from taihu.core.settings.base import Count, Section


class TrainSettings(Section):
    """`[train]`: how much is trained, how precisely, and what is kept in memory meanwhile.

    The `loss` bce is the binary cross-entropy of the outputs' sigmoid. It is for values of 0 and 1, and for two
    classes, which one output tells apart.

    With `recompute` memory or spill a forward keeps only the inputs of `recompute_segments` segments of the model, by
    default at most as many as the square root of its layers; backward computes the rest again. memory keeps these
    inputs in memory, spill in a temporary file. Results are the same bits.

    With `precision` bf16 or fp16 workers keep and exchange parameters and gradients in 16 bits and compute in fp32;
    the optimizer state lies beside an fp32 master of the parameters. fp16 needs its loss scaled. The scale begins
    with `loss_scale`, a power of two. A step whose gradients overflow is skipped by all workers, and halves it;
    `loss_scale_growth_steps` steps in a row without overflow double it. Of a script `precision` is that of gradients
    on the wire; parameters, and the scale of its losses, are its own affair (docs/torch.md).

    Before a run counts as finished, all workers compare a hash of their parameters. With `check_every` they do so
    every so many steps, too: one that differs ends the run at once, and is named.
    """

    batch: Annotated[int, Field(ge=1, le=10**6)] = Field(default=32, description="samples of each worker in a step")
    epochs: Annotated[int, Field(ge=1, le=10**6)] = Field(default=10, description="passes over the training data")
    steps: Count | None = Field(default=None, description="steps of the run; when given, instead of epochs")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=1, description="seed of everything random")
    check_every: Count | None = Field(
        default=None,
        description="steps after which the workers compare hashes of their parameters; none for at the end",
    )
    evaluate: bool = Field(default=True, description="test the model after every epoch and at the end")
    loss: Literal["auto", "cross-entropy", "mse", "bce"] = Field(
        default="auto", description="what is minimised; auto: cross-entropy of classes, mean squared error of values"
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="cross-entropy: the share of a target that all classes get alike"
    )
    recompute: Literal["none", "memory", "spill"] = Field(
        default="none",
        description="activations: none are computed again, or all are but some inputs, kept in memory or in a file",
    )
    recompute_segments: Annotated[int, Field(ge=1, le=10**5)] | None = Field(
        default=None, description="segments of the model with recompute; by default the square root of its layers"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="what workers keep and exchange parameters and gradients in"
    )
    loss_scale: Annotated[float, Field(ge=1, le=2.0**32)] = Field(
        default=65536.0, description="with fp16: the factor of the loss at first, a power of two"
    )
    loss_scale_growth_steps: Count = Field(
        default=2000, description="with fp16: steps without overflow after which the loss scale is doubled"
    )

    @field_validator("loss_scale")
    @classmethod
    def _is_a_power_of_two(cls, scale: float) -> float:
        if math.frexp(scale)[0] != 0.5:
            raise ValueError("loss_scale must be a power of two, so that it changes no digit: for example 65536")
        return scale

    @model_validator(mode="after")
    def _smoothing_fits_the_loss(self) -> TrainSettings:
        if self.label_smoothing and self.loss in {"mse", "bce"}:
            raise ValueError(
                f"label_smoothing {self.label_smoothing:g} is for cross-entropy, not for train.loss '{self.loss}': "
                "leave it out"
            )
        return self
