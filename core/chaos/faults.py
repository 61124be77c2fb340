"""Faults in words, `kill worker 1 at push after step 12`, read and written."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from taihu.core.chaos.points import Point

E = TypeVar("E", bound=StrEnum)

ANY: Final = "any"
"""The member of a fault that is drawn."""

GRAMMAR: Final = "KIND MEMBER [at POINT] [after step N | after T s] [for T s]"
"""The form of a fault."""

EXAMPLE: Final = "kill worker 1 at push after step 12"
"""A fault in words."""


class FaultKind(StrEnum):
    """The kind of a fault: the thing that happens to a process."""

    KILL = "kill"
    STOP = "stop"
    TERMINATE = "terminate"
    DROP = "drop"
    DELAY = "delay"
    FULL_DISK = "full-disk"
    SLOW_DISK = "slow-disk"
    CORRUPT = "corrupt"
    DUPLICATE = "duplicate"
    TRUNCATE = "truncate"
    CLOCK_JUMP = "clock-jump"


_USUAL_S: Final = MappingProxyType(
    {
        FaultKind.STOP: 60.0,
        FaultKind.DELAY: 1.0,
        FaultKind.FULL_DISK: 60.0,
        FaultKind.SLOW_DISK: 60.0,
        FaultKind.CLOCK_JUMP: 3600.0,
    }
)
"""Seconds that kinds last which do, or by which a clock jumps, where nothing is said."""

_MEMBER: Final = r"(?:server|worker) (?:0|[1-9][0-9]{0,4})"
_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_FORM: Final = re.compile(
    rf"(?P<kind>[a-z-]+) (?P<member>any|{_MEMBER})(?: at (?P<point>[a-z-]+))?"
    rf"(?: after (?:step (?P<step>[0-9]{{1,9}})|(?P<after>{_NUMBER}) s))?(?: for (?P<seconds>{_NUMBER}) s)?"
)


@dataclass(frozen=True)
class Fault:
    """One fault, which happens once.

    Attributes:
        kind: what happens.
        member: to whom, `worker 1`; ANY for one that is drawn.
        point: where, None for wherever the member is then.
        after_step: the step behind whose end it may happen; None from the beginning on.
        after_s: seconds from the run's beginning; not with `point` or `after_step`.
        seconds: how long it lasts, or how far a clock jumps, where it does; 0 stands for what is usual.
    """

    kind: FaultKind
    member: str
    point: Point | None = None
    after_step: int | None = None
    after_s: float | None = None
    seconds: float = 0.0

    @property
    def lasts_s(self) -> float:
        """Seconds that it lasts, or by which it moves a clock; 0 where it does neither."""
        return self.seconds or _USUAL_S.get(self.kind, 0.0)

    @property
    def place(self) -> Point | None:
        """The point at which it happens; that of a push where a step was named, and no point."""
        return Point.PUSH if self.point is None and self.after_step is not None else self.point

    def of(self, member: str) -> Fault:
        """The same fault of another member."""
        return replace(self, member=member)

    def __str__(self) -> str:
        words = [self.kind.value, self.member]
        if self.point is not None:
            words.append(f"at {self.point.value}")
        if self.after_step is not None:
            words.append(f"after step {self.after_step}")
        elif self.after_s is not None:
            words.append(f"after {_seconds(self.after_s)} s")
        if self.seconds:
            words.append(f"for {_seconds(self.seconds)} s")
        return " ".join(words)


def fault_from(text: str) -> Fault:
    """The fault that a text tells.

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    found = _FORM.fullmatch(" ".join(text.split()))
    if found is None:
        raise ValueError(f"expected {GRAMMAR}, for example {EXAMPLE!r}, got {text!r}")
    kind = _one_of(FaultKind, found["kind"], "a kind of fault", text)
    point = None if found["point"] is None else _one_of(Point, found["point"], "a point", text)
    if found["after"] is not None and point is not None:
        raise ValueError(f"expected a point or seconds, got both in {text!r}")
    if found["after"] is None and found["step"] is None and point is None:
        raise ValueError(f"expected when: at POINT, after step N, or after T s; got {text!r}")
    if found["after"] is not None and kind is FaultKind.DELAY:
        raise ValueError(f"expected a point or a step: a delay is one of whoever passes it, got {text!r}")
    if found["seconds"] is not None and kind not in _USUAL_S:
        raise ValueError(f"expected no `for`: {kind.value} does not last, got {text!r}")
    return Fault(
        kind,
        found["member"],
        point,
        None if found["step"] is None else int(found["step"]),
        None if found["after"] is None else float(found["after"]),
        0.0 if found["seconds"] is None else float(found["seconds"]),
    )


def is_member(text: str) -> bool:
    """Whether a text names a member: `server 0`, `worker 12`."""
    return re.fullmatch(_MEMBER, text) is not None


def _one_of(kinds: type[E], word: str, what: str, text: str) -> E:
    try:
        return kinds(word)
    except ValueError:
        known = ", ".join(each.value for each in kinds)
        raise ValueError(f"expected {what} ({known}), got {word!r} in {text!r}") from None


def _seconds(seconds: float) -> str:
    """A number as the form has it: no exponent, at most six decimals."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")
