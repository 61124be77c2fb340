"""`[compression]`."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import Field

from taihu.core.settings.base import Count, Section
from taihu.core.traits.methods import METHODS, NONE, Method

_ACTS_AS_MOMENTUM_OF_SGD: Final = 0.05
_ACTS_AS_BETA1: Final = 0.1

ValueName = Literal["fp32", "fp16", "bf16", "int8", "int4", "int2"]


class CompressionSettings(Section):
    """`[compression]`: what is sent of a gradient; what is not is sent later (error feedback).

    `method` topk sends the share `density` of the whole gradient, lags and dlgs that share of every layer; dlgs makes
    its thresholds anew every `refresh_every` steps only, or where they select more or less than `threshold_slack`
    allows. With `threshold` group it has one for all layers that are
    merged into a message; what a run computes then depends on its plan. `quantized` sends every value, in the few
    bits of a `value_type`, and holds back what rounding takes away. `powersgd` sends each matrix of a script's
    gradients as the product of two, `rank` wide. `auto` is one of these, or none: some steps
    measure links and processors, and the run begins anew by the way that is predicted to take the least time to a
    loss; a `density` and a `value_type` that are given are the least that it may send. `downlink` is what comes back:
    all parameters (`dense`), those that any worker pushed (`exact`), or as many as one worker pushed
    (`doublesqueeze`).
    With a `downlink_value_type` of few bits the sums come back instead of the parameters, and workers update as the
    servers do; what rounding takes away stays on the servers, and comes with the next sum of its place. A step is
    shared by the values of a layer in one frame: what a run computes then depends on the number of servers.
    `momentum_at` says who applies momentum: nobody, the workers before they select (momentum correction), or the
    servers. With `auto` nobody does at densities up to 0.05 (adam: 0.1): what is held back acts as momentum, and the
    rate of sgd grows by 1 / (2 (1 - momentum)) for what it loses. `factor_masking` stops the momentum of what was
    sent, for densities so low that it would be stale. The density falls from 1 within `density_warmup_steps`.
    With `held_back_rises` no a learning rate that rises does not enlarge the updates that are held back: a warm-up
    holds for them, too. `auto` is no, and yes with a `momentum_at` of workers or servers and with doublesqueeze, as
    their papers have it.
    `clip_norm` bounds gradients before they are added to what is held back: with `clip` unit the norm of those that
    share a threshold, divided by the square root of the number of workers; with `clip` whole the norm of all of a
    worker's, for which the norm of the step before stands.
    """

    method: Annotated[Method, METHODS] = Field(default=NONE, description="how gradients are made smaller")
    density: Annotated[float, Field(ge=1e-9, le=1)] = Field(
        default=0.01, description="share of the gradient that is sent"
    )
    threshold: Literal["layer", "group"] = Field(
        default="layer", description="dlgs: what shares a threshold, a layer or the layers of a message"
    )
    refresh_every: Count = Field(default=32, description="dlgs: steps after which a threshold is made anew")
    threshold_slack: Annotated[float, Field(ge=0, le=1000)] | Literal["none"] = Field(
        default=0.25,
        description="dlgs: how much more or less than the density asks for a threshold may select before it is made "
        "anew, as a share; none for any number, as printed",
    )
    rank: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4, description="powersgd: the width of the matrices whose product stands for a gradient"
    )
    value_type: ValueName = Field(
        default="fp32",
        description="what selected values are sent as; what rounding takes away is sent later. Those of int8, int4 "
        "and int2 are multiples of a step, one for all that share a threshold",
    )
    downlink: Literal["auto", "dense", "exact", "doublesqueeze"] = Field(
        default="auto",
        description="what comes back: all parameters, those that were pushed, or as many as one worker pushed",
    )
    downlink_value_type: Literal["fp32", "int8", "int4", "int2"] = Field(
        default="fp32",
        description="downlink exact: the type of what comes back; of few bits it is sums, by which workers update, "
        "too",
    )
    momentum_at: Literal["auto", "none", "workers", "servers"] = Field(
        default="auto", description="who applies momentum: nobody, workers before they select, or servers after"
    )
    factor_masking: bool = Field(default=False, description="stop the momentum of what was sent")
    density_warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = Field(
        default=0, description="steps within which the density falls from 1"
    )
    held_back_rises: Literal["auto", "no", "yes"] = Field(
        default="auto",
        description="whether a learning rate that rises enlarges the updates that are held back",
    )
    clip_norm: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description="the largest norm of a worker's gradient before it is added to what is held back: what "
        "compression.clip says",
    )
    clip: Literal["unit", "whole"] = Field(
        default="unit",
        description="what clip_norm bounds: what shares a threshold, by the norm divided by the root of the number "
        "of workers, or each worker's whole gradient",
    )

    @property
    def slack(self) -> float:
        """`threshold_slack` as a number: inf for none."""
        return math.inf if self.threshold_slack == "none" else self.threshold_slack

    def acts_as_momentum(self, *, of_sgd: bool) -> bool:
        """Whether so much is held back that it stands in for a momentum, or a beta1, of 0.9 (docs/adr/0061, 0067)."""
        return self.share <= (_ACTS_AS_MOMENTUM_OF_SGD if of_sgd else _ACTS_AS_BETA1)

    @property
    def is_of_few_bits(self) -> bool:
        """Whether what is selected goes as multiples of a step."""
        return self.value_type.startswith("int")

    @property
    def rounds_sums(self) -> bool:
        """Whether servers answer with sums in few bits, by which workers update, too."""
        return self.downlink_value_type != "fp32"

    @property
    def share(self) -> float:
        """The share of the gradient that is sent: all of it where the method leaves nothing out."""
        return self.density if self.method.selects and not self.method.sends_all else 1.0
