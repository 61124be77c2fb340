"""`[exchange]`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from taihu.core.base.words import parse_bytes
from taihu.core.settings.base import Count, Form, Seconds, Section
from taihu.core.traits.consistencies import BSP, CONSISTENCIES, Consistency
from taihu.core.traits.exchanges import EXCHANGES, SERVER, ExchangeKind
from taihu.core.traits.stages import STAGES, Stage

Transport = Literal["auto", "tcp", "same-host", "grpc"]

_PLAN: Final = Form(
    r"auto|greedy|exact|per-layer|single|bucket:[0-9]{1,12}(\.[0-9]{1,12})?[kMGT]?B",
    "auto, greedy, exact, per-layer, single or bucket:SIZE",
    "bucket:4MB",
)


_LEAST_LIVE_BYTES: Final = 4096
_LEAST_BUCKET_BYTES: Final = 64


class ExchangeSettings(Section):
    """`[exchange]`: how gradients and parameters travel.

    Through servers (`kind` server), or around a ring of workers without any server, where worker 0 coordinates.

    `plan` merges layers into groups: `per-layer`, `single`, `bucket:SIZE` (for example `bucket:4MB`), or as computed
    from measurements of the running job: `greedy`, `exact`, and `auto`, the fewest groups within 2 % of `exact`. The
    first `calibration_steps` steps are measured, and as many by the plan that they led to; every `replan_every` steps
    the plan is made anew if another one has become better. A group is cut into frames for each server that cover at
    most `frame_bytes` of dense values: by default 512 KiB, or about 4 MiB where all processes run on one machine or
    only selected values are sent, and less, or up to 4 MiB, where a computed plan finds that links want it. At most
    `window_frames` of them are on their way to one server without an answer.

    `transport` is what values travel on. Processes of one machine exchange dense values in memory that they share
    (`same-host`; in a ring all workers must be there). Others take gRPC's streams (`grpc`), or TCP connections beside
    them (`tcp`; where one cannot be opened, its values stay in gRPC). With `auto` they begin in gRPC's streams, try
    both in turns for some of the steps that are measured, and go on by connections if those are more than 3 % faster.

    `fc` splits the fully connected layers at the model's end by outputs over the workers, which then exchange
    activations instead of these layers' gradients: all of them (`shard`), or those for which that is predicted to be
    faster from what the links are measured to do before the first step (`auto`). The examples of all workers go
    through them in one pass (`fc_scheme` gather), one worker's after the other's (turns), or a slice of everybody's
    at a time (slices). With `fc_update` pass these layers are updated after every pass, by its examples alone: that
    is no longer SGD with the whole batch. Until the gradients of weights are computed, `fc_inputs` of these layers
    stay: those of all examples (`all`), or this worker's part of them (`own`), or that in a temporary file
    (`spilled`); what does not stay is gathered a second time.

    `zero` is the stage of ZeRO. In stage 0 every worker keeps everything. From stage 1 on the optimizer state is
    divided among the servers, or in a ring among the workers. From stage 2 on workers give the memory of gradients
    back as soon as a group has been summed. In stage 3 they fetch the parameters of a group when they need them,
    twice in a step. With `returns` gradients nobody updates: the mean gradient of all workers comes back, for an
    optimizer of the user's own (`taihu.torch`), in stage 0; infinities are passed on then, since a loop that scales
    its losses skips such a step by itself. With `returns` script it is the script that says so, or that servers
    update by its optimizer (`DistributedOptimizer(..., update="servers")`); `taihu run` with servers sets that. The
    default is 1 with servers, 0 in a ring, and 2 with 16-bit parameters, which need at least that. From stage 2 on no
    merged group exceeds `bucket_bytes` of fp32
    values, and of a layer that is spread so much of the gradient is computed at once: by default 16 MiB, or where
    `fc` is not data an eighth of what is exchanged if that is less, but at least 1 MiB. In stage 3 a worker holds
    `live_bytes` of fp32 parameters, or two groups if that is more; what it can keep from forward to backward is
    fetched once in a step.

    With `local_steps` H a step has H batches of every worker: it updates its own copy of the parameters H times, by
    `[optimizer]`, and only the difference from the parameters that all began with is exchanged, as gradients are.
    They change by the outer step: the mean difference times `outer_learning_rate`, with Nesterov's `outer_momentum`.
    Everything that counts steps counts exchanges: train.steps, schedules, checkpoints; an epoch has as many samples
    as before. Workers keep all parameters, and optimizer state each of its own (zero 0 or 1).

    `consistency` says which gradients the parameters may lack that a worker computes with. With `bsp` none: a step
    has those of all workers, and all wait for it. With `ssp:K` each worker's gradient is an update of its own, at the
    learning rate divided by the number of workers, and no worker is more than K steps ahead of the slowest; `ssp:0`
    is `bsp`. With `async` nobody waits. With `bsp:N-b` a step is the mean of the first gradients to come, of all
    workers but b; those that come later are dropped, and their workers go on with a later step (docs/consistency.md).
    """

    kind: Annotated[ExchangeKind, EXCHANGES] = Field(
        default=SERVER, description="through servers, or around a ring of workers"
    )
    plan: Annotated[str, _PLAN] = Field(default="auto", description="how layers are merged into groups")
    transport: Transport = Field(
        default="auto", description="what values travel on; auto takes the best that can be had"
    )
    fc: Literal["auto", "data", "shard"] = Field(
        default="data", description="fully connected layers: gradients exchanged, or layers spread over the workers"
    )
    fc_scheme: Literal["gather", "turns", "slices"] = Field(
        default="gather", description="spread layers: whose examples go through them in one pass"
    )
    fc_update: Literal["step", "pass"] = Field(default="step", description="spread layers: when they are updated")
    fc_inputs: Literal["all", "own", "spilled"] = Field(
        default="all", description="spread layers: inputs that stay until the gradients of weights"
    )
    calibration_steps: Annotated[int, Field(ge=4, le=10_000)] = Field(
        default=8, description="steps that are measured before a plan is computed"
    )
    replan_every: Count = Field(default=200, description="steps after which a computed plan is looked at again")
    frame_bytes: Annotated[int, Field(ge=4096, le=4 << 20, multiple_of=4)] | None = Field(
        default=None, description="dense values of one frame, in bytes; by default as links want it"
    )
    window_frames: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=4, description="frames under way to one server without an answer"
    )
    zero: Annotated[Stage, STAGES] | None = Field(
        default=None, description="stage of ZeRO, 0 to 3; by default 1 with servers, 0 in a ring, 2 with 16 bits"
    )
    returns: Literal["parameters", "gradients", "script"] = Field(
        default="parameters",
        description="what comes back: parameters, mean gradients for whoever updates, or what the script says",
    )
    local_steps: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="updates of each worker's own copy of the parameters, a batch each, in one step"
    )
    outer_learning_rate: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None,
        description="local steps: what the mean difference is multiplied by; by default 1, with a momentum 0.7",
    )
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="local steps: Nesterov's momentum of the outer step, for example 0.9 (DiLoCo)"
    )
    consistency: Annotated[Consistency, CONSISTENCIES] = Field(
        default=BSP, description="whose gradients a step waits for: all, or not those of slow workers"
    )
    bucket_bytes: Annotated[int, Field(ge=4096, le=1 << 40)] | None = Field(
        default=None,
        description="zero 2 and 3: the most fp32 values of a merged group, in bytes; by default 16 MiB or less",
    )
    live_bytes: Annotated[int, Field(ge=0, le=1 << 44)] = Field(
        default=0, description="zero 3: fp32 parameters that a worker may hold, in bytes; at least two groups"
    )
    timeout_s: Seconds | None = Field(
        default=None,
        description="the longest wait for others within a step, in seconds; by default until nothing moves any more",
    )
    non_finite: Literal["error", "allow"] | None = Field(
        default=None,
        description="gradients that are not finite end the run; by default an error, unless gradients come back",
    )

    @field_validator("live_bytes")
    @classmethod
    def _holds_something(cls, size: int) -> int:
        if 0 < size < _LEAST_LIVE_BYTES:
            raise ValueError(f"expected 0, or at least {_LEAST_LIVE_BYTES} bytes, got {size}")
        return size

    @field_validator("plan")
    @classmethod
    def _buckets_hold_something(cls, plan: str) -> str:
        size = parse_bytes(plan.removeprefix("bucket:"))
        if size is not None and size < _LEAST_BUCKET_BYTES:
            raise ValueError(
                f"expected buckets of at least {_LEAST_BUCKET_BYTES} bytes, for example 'bucket:4MB', got {plan!r}"
            )
        return plan
