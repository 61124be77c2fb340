"""Learning rates that follow the number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import torch

from taihu.core.base.errors import ConfigError

_RULES: Final = {"linear": lambda ratio: ratio, "sqrt": math.sqrt}


def change_rates(objects: Iterable[object], rule: str, ratio: float) -> None:
    """Multiply the rates of optimizers, and those that schedulers began with.

    Args:
        objects: optimizers and schedulers; others are left alone.
        rule: `linear` or `sqrt`.
        ratio: of the numbers of workers.

    Raises:
        ConfigError: there is no such rule.
    """
    if rule not in _RULES:
        raise ConfigError(f"adapt_rates({rule!r}): expected 'linear' or 'sqrt'")
    factor = _RULES[rule](ratio)
    for each in objects:
        if isinstance(each, torch.optim.Optimizer):
            for group in each.param_groups:
                for key in {"lr", "initial_lr", "max_lr", "min_lr"} & group.keys():
                    group[key] *= factor
        elif isinstance(each, torch.optim.lr_scheduler.LRScheduler):
            each.base_lrs = [rate * factor for rate in each.base_lrs]
