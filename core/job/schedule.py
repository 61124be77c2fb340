"""The learning rate of every step: a pure function of settings and step, so that restarts need no state of it."""

from __future__ import annotations

import math

from taihu.core.base.errors import ConfigError
from taihu.core.model.run_length import RunLength
from taihu.core.settings import OptimizerSettings


def in_steps(settings: OptimizerSettings, length: RunLength | None) -> OptimizerSettings:
    """`settings` with everything that is by the run's length in steps: what `learning_rate` takes.

    Epochs become the nearest number of steps, at least 1; cosine ends with the run unless `decay_steps` says
    otherwise.

    Raises:
        ConfigError: the schedule is by the run's length, and there is none.
    """
    by_length = [key for key in ("milestone_epochs", "warmup_epochs") if getattr(settings, key)]
    if settings.schedule == "cosine" and settings.decay_steps is None:
        by_length.append("decay_steps")
    if not by_length:
        return settings
    if length is None:
        key = f"optimizer.{by_length[0]}"
        raise ConfigError(f"{key}: nobody brought the length of the run; give the schedule in steps")
    return settings.model_copy(
        update={
            "milestones": settings.milestones or tuple(_steps(e, length) for e in settings.milestone_epochs),
            "milestone_epochs": (),
            "decay_steps": settings.decay_steps or length.total_steps,
            "warmup_steps": settings.warmup_steps or _steps(settings.warmup_epochs, length),
            "warmup_epochs": 0.0,
        }
    )


def _steps(epochs: float, length: RunLength) -> int:
    return max(1, round(epochs * length.steps_per_epoch)) if epochs else 0


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The rate of step `step`, counted from 1, by settings `in_steps`: `warmup(step) * rate(step - 1)`.

    With t = step - 1, the number of steps taken before, as PyTorch's schedulers count:

    - `constant`: rate(t) = learning_rate.
    - `step`: rate(t) = learning_rate * gamma**k, where k milestones are at most t; milestone 800 lets 800 steps run
      at the earlier rate.
    - `cosine`: rate(t) = final + (learning_rate - final) * (1 + cos(pi * min(t / decay_steps, 1))) / 2 with
      final = final_learning_rate.

    warmup(step) = min(1, step / warmup_steps), or 1 without `warmup_steps`: step `warmup_steps` is the first at the
    full rate. Warm-up steps count as steps of the schedule.

    Raises:
        ValueError: `step` is below 1.
    """
    if step < 1:
        raise ValueError(f"step {step}: steps count from 1")
    warmup = min(1.0, step / settings.warmup_steps) if settings.warmup_steps else 1.0
    return warmup * _scheduled(settings, step - 1)


def steady_from(settings: OptimizerSettings) -> int:
    """The first step from which on all have the same rate, by settings `in_steps`."""
    match settings.schedule:
        case "constant":
            last_change = 0
        case "step":
            last_change = max(settings.milestones, default=0)
        case "cosine":
            assert settings.decay_steps is not None, "a schedule that is not in steps"  # noqa: S101
            last_change = settings.decay_steps
    return max(settings.warmup_steps, last_change + 1)


def _scheduled(settings: OptimizerSettings, elapsed: int) -> float:
    match settings.schedule:
        case "constant":
            return settings.learning_rate
        case "step":
            passed = sum(milestone <= elapsed for milestone in settings.milestones)
            return settings.learning_rate * settings.gamma**passed
        case "cosine":
            final = settings.final_learning_rate
            assert settings.decay_steps is not None, "a schedule that is not in steps"  # noqa: S101
            progress = min(elapsed / settings.decay_steps, 1.0)
            return final + (settings.learning_rate - final) * (1.0 + math.cos(math.pi * progress)) / 2.0
