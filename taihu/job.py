"""The job file: what one run is, the same on a laptop and on a hundred machines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["OptimizerSettings"]


class Section(BaseModel):
    """A table of the job file: frozen, typed, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class OptimizerSettings(Section):
    """`[optimizer]`: the update rule and its learning-rate schedule. Steps count from 1."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    schedule: Literal["constant", "step", "cosine"] = "constant"
    milestones: tuple[Annotated[int, Field(gt=0)], ...] = ()
    gamma: Annotated[float, Field(gt=0)] = 0.1
    decay_steps: Annotated[int, Field(ge=0)] = 0
    final_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
