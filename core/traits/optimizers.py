"""Optimizers: the settings that they read, the state that they keep, and where they may run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taihu.core.traits.registry import Registry

_ADAPTIVE_RATE: Final = 0.001


@dataclass(frozen=True, repr=False)
class Optimizer:
    """One update rule.

    Attributes:
        key: its name in a job file.
        reads: the keys of `[optimizer]` that are its own.
        state: names of the arrays that it keeps, each of a number per parameter.
        state_needs: the key of `reads` without which it keeps none; "" where it always does.
        update: "module:function" that updates, see `taihu.core.optimization.rules`.
        is_linear: whether an update is a linear function of the gradients. Workers may then apply its momentum before
            they select, and without momentum and decay a parameter without a gradient stays.
        learning_rate: of a job that gives none; None where that is the model's.
        momentum: the key of `reads` by which earlier gradients go on in an update; "" where none do.
    """

    key: str
    reads: tuple[str, ...]
    state: tuple[str, ...]
    update: str
    state_needs: str = ""
    is_linear: bool = False
    learning_rate: float | None = _ADAPTIVE_RATE
    momentum: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def __str__(self) -> str:
        return self.key


_MOMENTS: Final = ("beta1", "beta2", "epsilon")
_MOMENT_ARRAYS: Final = ("exp_avg", "exp_avg_sq")

SGD: Final = Optimizer(
    "sgd",
    reads=("momentum", "nesterov"),
    state=("momentum",),
    state_needs="momentum",
    update="taihu.core.optimization.rules:sgd",
    is_linear=True,
    learning_rate=None,
    momentum="momentum",
)
ADAM: Final = Optimizer("adam", _MOMENTS, _MOMENT_ARRAYS, "taihu.core.optimization.rules:adam", momentum="beta1")
ADAMW: Final = Optimizer("adamw", _MOMENTS, _MOMENT_ARRAYS, "taihu.core.optimization.rules:adamw", momentum="beta1")

OPTIMIZERS: Final = Registry(Optimizer, "taihu.optimizers", (SGD, ADAM, ADAMW))
