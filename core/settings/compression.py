"""`[compression]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from taihu.core.settings.base import Count, Section
from taihu.core.traits.methods import METHODS, NONE, Method

__all__ = ["CompressionSettings"]


class CompressionSettings(Section):
    """`[compression]`: what is sent of a gradient; what is not is sent later (error feedback).

    `method` topk sends the share `density` of the whole gradient, lags and dlgs that share of every layer; dlgs makes
    its thresholds anew every `refresh_every` steps only. With `threshold` group it has one for all layers that are
    merged into a message; what a run computes then depends on its plan. `downlink` is what comes back: all
    parameters (`dense`), those that any worker pushed (`exact`), or as many as one worker pushed (`doublesqueeze`).
    `momentum_at` says who applies momentum: the workers before they select (momentum correction), or the servers.
    `factor_masking` stops the momentum of what was sent, for densities so low that it would be stale. The density
    falls from 1 within `density_warmup_steps`. `clip_norm`, divided by the square root of the number of workers,
    bounds the norm of the gradients that share a threshold.
    """

    method: Annotated[Method, METHODS] = Field(default=NONE, description="how gradients are made sparse")
    density: Annotated[float, Field(ge=1e-9, le=1)] = Field(
        default=0.01, description="share of the gradient that is sent"
    )
    threshold: Literal["layer", "group"] = Field(
        default="layer", description="dlgs: what shares a threshold, a layer or the layers of a message"
    )
    refresh_every: Count = Field(default=32, description="dlgs: steps after which a threshold is made anew")
    value_type: Literal["fp32", "fp16", "bf16"] = Field(
        default="fp32", description="what selected values are sent as"
    )
    downlink: Literal["auto", "dense", "exact", "doublesqueeze"] = Field(
        default="auto",
        description="what comes back: all parameters, those that were pushed, or as many as one worker pushed",
    )
    momentum_at: Literal["auto", "workers", "servers"] = Field(
        default="auto", description="who applies momentum: workers before they select, or servers after"
    )
    factor_masking: bool = Field(default=False, description="stop the momentum of what was sent")
    density_warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = Field(
        default=0, description="steps within which the density falls from 1"
    )
    clip_norm: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description="the largest norm of what shares a threshold, times the root of the number of workers",
    )

    @property
    def share(self) -> float:
        """The share of the gradient that is sent: all of it where the method selects nothing."""
        return self.density if self.method.selects else 1.0
