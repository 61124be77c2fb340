"""`[chaos]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from taihu.core.chaos.faults import EXAMPLE, GRAMMAR, fault_from, is_member
from taihu.core.settings.base import FilePath, Seconds, Section

# All but a delay: drawn faults have a time each, and a delay is one of whoever passes a point.
_Drawn = Literal[
    "kill",
    "stop",
    "terminate",
    "drop",
    "full-disk",
    "slow-disk",
    "corrupt",
    "duplicate",
    "truncate",
    "clock-jump",
]


def _check_fault(text: str) -> str:
    fault_from(text)
    return text


def _check_member(text: str) -> str:
    if not is_member(text):
        raise ValueError(f"expected a member, for example 'worker 1', got {text!r}")
    return text


class ChaosSettings(Section):
    """`[chaos]`: faults of the run's own processes, to see what they lead to; none unless they are asked for.

    Each of `faults` happens once in a run, also where another process has taken the place of the one that it happened
    to; the member `any` is drawn by `seed`. Beside them others are drawn by `seed`, `every_s` apart in the mean: one
    of `kinds` to one of `members`. `dir` is where processes note what has happened; `taihu train` has it in the run's
    folder. See docs/chaos.md.
    """

    faults: tuple[Annotated[str, AfterValidator(_check_fault)], ...] = Field(
        default=(), strict=False, description=f"faults, each as {GRAMMAR}: {EXAMPLE!r}"
    )
    every_s: Seconds | None = Field(default=None, description="seconds between two drawn faults, in the mean")
    kinds: tuple[_Drawn, ...] = Field(
        default=("kill",), strict=False, min_length=1, description="the kinds of drawn faults"
    )
    members: tuple[Annotated[str, AfterValidator(_check_member)], ...] = Field(
        default=(), strict=False, description="the members of drawn faults; all, if none is named"
    )
    listens: bool = Field(default=False, description="whether processes do what `taihu dev chaos` asks them for")
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(default=0, description="what draws begin with")
    dir: FilePath | None = Field(
        default=None, description="the folder, which all processes see, where they note what has happened"
    )

    @property
    def is_asked_for(self) -> bool:
        """Whether there are any faults."""
        return bool(self.faults) or self.every_s is not None or self.listens

    @model_validator(mode="after")
    def _kinds_are_named_once(self) -> ChaosSettings:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError("chaos.kinds: expected each kind once")
        return self
