"""The tables of a job file: typed, with defaults, checked each on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from taihu.errors import ConfigError
from taihu.names import check_data_name, check_model_name

__all__ = [
    "ClusterSettings",
    "CompressionSettings",
    "DataSettings",
    "ExchangeSettings",
    "ModelSettings",
    "OptimizerSettings",
    "Section",
    "TrainSettings",
    "Transport",
]

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A table of the job file: frozen, typed, finite, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _accepted_by(check: Callable[[str], None]) -> AfterValidator:
    def accept(text: str) -> str:
        try:
            check(text)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(accept)


class ModelSettings(Section):
    """`[model]`: a model of the zoo, or `path/to/file.py:build`."""

    name: Annotated[str, _accepted_by(check_model_name)] = "small_cnn"


class DataSettings(Section):
    """`[data]`: the data set, where its files lie, and how training images are augmented."""

    name: Annotated[str, _accepted_by(check_data_name)] = "digits"
    path: Path | None = None
    augment: Literal["none", "flip", "crop-flip"] = "none"


class TrainSettings(Section):
    """`[train]`: `batch` is per worker; `steps`, when given, overrides `epochs`.

    With `checkpoint` recompute only the inputs of `checkpoint_segments` segments of the model are kept in forward, by
    default at most as many as the square root of its layers, and the rest is computed again in backward; with spill
    the inputs wait in a temporary file. Results are the same bits.

    With `precision` bf16 or fp16 workers keep and exchange parameters and gradients in 16 bits, computing in fp32,
    and the optimizer state lies beside an fp32 master of the parameters. fp16 needs its loss scaled: by `loss_scale`
    at first, a power of two, by half of that after every step whose gradients overflow, which all workers skip, and
    by twice as much after `loss_scale_growth_steps` steps in a row that do not.
    """

    batch: PositiveInt = 32
    epochs: PositiveInt = 10
    steps: PositiveInt | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    evaluate: bool = True
    checkpoint: Literal["none", "recompute", "spill"] = "none"
    checkpoint_segments: PositiveInt | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    loss_scale: Annotated[float, Field(ge=1, le=2.0**32)] = 65536.0
    loss_scale_growth_steps: PositiveInt = 2000

    @field_validator("loss_scale")
    @classmethod
    def _is_a_power_of_two(cls, scale: float) -> float:
        if math.frexp(scale)[0] != 0.5:
            raise ValueError("loss_scale must be a power of two, so that it changes no digit: for example 65536")
        return scale


class OptimizerSettings(Section):
    """`[optimizer]`: the update rule and its learning-rate schedule. Steps count from 1.

    `milestones` (schedule `step`), `decay_steps` (schedule `cosine`) and `warmup_steps` are in steps.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: PositiveFloat = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 1e-8
    schedule: Literal["constant", "step", "cosine"] = "constant"
    milestones: tuple[PositiveInt, ...] = ()
    gamma: PositiveFloat = 0.1
    decay_steps: Annotated[int, Field(ge=0)] = 0
    final_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _schedule_is_complete(self) -> OptimizerSettings:
        if self.schedule == "step" and not self.milestones:
            raise ValueError("schedule 'step' needs optimizer.milestones, for example [800, 1200]")
        if self.schedule == "cosine" and not self.decay_steps:
            raise ValueError("schedule 'cosine' needs optimizer.decay_steps, the step at which it ends")
        if self.nesterov and (self.name != "sgd" or not self.momentum):
            raise ValueError("nesterov needs optimizer.name = 'sgd' and a momentum above 0")
        return self


Transport = Literal["auto", "tcp", "same-host", "grpc"]


class ExchangeSettings(Section):
    """`[exchange]`: how gradients and parameters travel.

    Through servers (`kind` server), or around a ring of workers without any server, where worker 0 coordinates.

    `plan` merges layers into groups: `per-layer`, `single`, `bucket:SIZE` (for example `bucket:4MB`), or as computed
    from measurements of the running job: `greedy`, `exact`, and `auto`, the fewest groups within 2 % of `exact`. The
    first `calibration_steps` steps are measured, and as many by the plan that they led to; every `replan_every` steps
    the plan is made anew if another one has become better. A group is cut into frames for each server that cover at
    most `frame_bytes` of dense values: by default 512 KiB, or about 4 MiB where all processes run on one machine or
    only selected values are sent, and less where a computed plan finds that the links want it. At most
    `window_frames` of them are on their way to one server without an answer. Processes of one machine exchange dense
    values in memory that they share (`same-host`; in a ring all workers must be there), others over TCP connections
    (`tcp`), or in gRPC's streams where those cannot be opened (`grpc`); `transport` is the best of them that may be
    used, or with `same-host` the only one.

    `fc` splits the fully connected layers at the model's end by outputs over the workers, which then exchange
    activations instead of these layers' gradients: all of them (`shard`), or those for which that is predicted to be
    faster from what the links are measured to do before the first step (`auto`). The examples of all workers go
    through them in one pass (`fc_scheme` gather), one worker's after the other's (turns), or a slice of everybody's
    at a time (slices). With `fc_update` pass these layers are updated after every pass, by its examples alone: that
    is no longer SGD with the whole batch.

    `zero` is the stage of ZeRO: every worker keeps everything (0), the servers, in a ring the workers, keep a part of
    the optimizer state each (1), workers give the memory of gradients back as soon as a group has been summed (2),
    and fetch the parameters of a group when they need them, twice in a step (3). By default 1 with servers, 0 in a
    ring, and 2 with 16-bit parameters, which need at least that. From stage 2 on no merged group exceeds
    `bucket_bytes` of fp32 values. In stage 3 a worker holds `live_bytes` of fp32 parameters, or two groups if that is
    more: what it can keep from forward to backward is fetched once in a step.
    """

    kind: Literal["server", "ring"] = "server"
    plan: Annotated[str, Field(pattern=r"^(auto|greedy|exact|per-layer|single|bucket:[0-9]+(\.[0-9]+)?[kMG]?B)$")] = (
        "auto"
    )
    transport: Transport = "auto"
    fc: Literal["auto", "data", "shard"] = "data"
    fc_scheme: Literal["gather", "turns", "slices"] = "gather"
    fc_update: Literal["step", "pass"] = "step"
    calibration_steps: Annotated[int, Field(ge=4)] = 8
    replan_every: PositiveInt = 200
    frame_bytes: Annotated[int, Field(ge=4096, le=4 << 20, multiple_of=4)] | None = None
    window_frames: PositiveInt = 6
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    bucket_bytes: Annotated[int, Field(ge=4096)] = 16 << 20
    live_bytes: Annotated[int, Field(ge=0)] = 0
    timeout_s: PositiveFloat = 600.0
    non_finite: Literal["error", "allow"] = "error"


class CompressionSettings(Section):
    """`[compression]`: what is sent of a gradient; what is not is sent later (error feedback).

    `topk` keeps the share `density` of the whole gradient, `lags` of every layer, `dlgs` of every group with a
    threshold that is made anew every `refresh_every` steps. `downlink` is what comes back: all parameters (`dense`),
    those that any worker pushed (`exact`), or as many as one worker pushed (`doublesqueeze`). Momentum is applied by
    the workers before they select (momentum correction) or by the servers after (`momentum_at`); `factor_masking`
    stops the momentum of what was sent, for densities so low that it would be stale. The density falls from 1 within
    `density_warmup_steps`; `clip_norm`, divided by the square root of the number of workers, bounds the norm of the
    gradient of what shares a threshold.
    """

    method: Literal["none", "topk", "lags", "dlgs"] = "none"
    density: Annotated[float, Field(gt=0, le=1)] = 0.01
    refresh_every: PositiveInt = 32
    value_type: Literal["fp32", "fp16", "bf16"] = "fp32"
    downlink: Literal["auto", "dense", "exact", "doublesqueeze"] = "auto"
    momentum_at: Literal["auto", "workers", "servers"] = "auto"
    factor_masking: bool = False
    density_warmup_steps: Annotated[int, Field(ge=0)] = 0
    clip_norm: PositiveFloat | None = None


class ClusterSettings(Section):
    """`[cluster]`: how many processes there are, where server 0 is found, and what workers compute with.

    `coordinator` is `host:port`, or `dns:NAME:port` where the addresses of a name are those of all servers.

    With `compute` sw26010 this machine's processor computes, the same bits as always, but the job is planned by
    modelled times of forward and backward: those of an SW26010, of which `core_groups` core groups share a worker's
    batch. With sw26010-functional the model of that processor computes as well, tile by tile: the same within
    rounding, and many times as long. All other times, those of links and compression, are measured as always.
    """

    servers: PositiveInt = 2
    workers: PositiveInt = 3
    coordinator: Annotated[str, Field(pattern=r"^(dns:)?[^:\s]+:[0-9]{1,5}$")] | None = None
    connect_timeout_s: PositiveFloat = 60.0
    heartbeat_s: PositiveFloat = 0.5
    lost_after_s: PositiveFloat = 15.0
    threads: Annotated[int, Field(ge=0)] = 0
    reflection: bool = False
    compute: Literal["cpu", "sw26010", "sw26010-functional"] = "cpu"
    core_groups: Annotated[int, Field(ge=1, le=4)] = 4

    @model_validator(mode="after")
    def _a_missed_heartbeat_is_no_loss(self) -> ClusterSettings:
        if self.lost_after_s <= self.heartbeat_s:
            raise ValueError(
                f"cluster.lost_after_s {self.lost_after_s:g}: expected more than cluster.heartbeat_s, "
                f"{self.heartbeat_s:g}; every member would be given up between two of its heartbeats"
            )
        return self
