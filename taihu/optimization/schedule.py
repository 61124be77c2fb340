"""The learning rate of every step: a pure function of settings and step, so that restarts need no state of it."""

from __future__ import annotations

import math

from taihu.settings import OptimizerSettings

__all__ = ["learning_rate"]


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The rate of step `step`, counted from 1: `warmup(step) * rate(step - 1)`.

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


def _scheduled(settings: OptimizerSettings, elapsed: int) -> float:
    match settings.schedule:
        case "constant":
            return settings.learning_rate
        case "step":
            passed = sum(milestone <= elapsed for milestone in settings.milestones)
            return settings.learning_rate * settings.gamma**passed
        case "cosine":
            final = settings.final_learning_rate
            progress = min(elapsed / settings.decay_steps, 1.0)
            return final + (settings.learning_rate - final) * (1.0 + math.cos(math.pi * progress)) / 2.0
