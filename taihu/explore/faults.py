"""Faults of a simulated world in words: `kill worker 1 at its 3rd "send Begin"`. Pure.

The words are those of `[chaos]` and `taihu dev chaos` (taihu.core.chaos.faults) where a fault is one of theirs. A
world has more: hosts, links and clocks can fail, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from taihu.core.base.words import ordinal


class Kind(StrEnum):
    """The kind of a fault: the thing that happens to a member."""

    KILL = "kill"
    STOP = "stop"
    SUSPEND = "suspend"
    TERMINATE = "terminate"
    LEAVE = "leave"
    INTERRUPT = "interrupt"
    POWER_LOSS = "power-loss"
    DROP = "drop"
    DROP_ONE = "drop-one"
    HALF_OPEN = "half-open"
    STALL = "stall"
    PARTITION = "partition"
    DEAF = "deaf"
    MUTE = "mute"
    SLOW_LINK = "slow-link"
    DELAY = "delay"
    FULL_DISK = "full-disk"
    SLOW_DISK = "slow-disk"
    READ_ONLY_DISK = "read-only-disk"
    CORRUPT = "corrupt"
    DUPLICATE = "duplicate"
    TRUNCATE = "truncate"
    CLOCK_JUMP = "clock-jump"
    FAST_CLOCK = "fast-clock"

    @property
    def meaning(self) -> str:
        """The thing that happens, in words."""
        return _MEANINGS[self]

    @property
    def lasts(self) -> bool:
        """Whether it goes on for some seconds, and ends."""
        return self in _LASTING


_MEANINGS: Final = MappingProxyType(
    {
        Kind.KILL: "its process is gone; connections are reset",
        Kind.STOP: "its process stands still, and goes on later",
        Kind.SUSPEND: "its machine stands still with all that runs there, and goes on later",
        Kind.TERMINATE: "it gets SIGTERM, which ends the run",
        Kind.LEAVE: "it gets SIGTERM, as a pod that is to move: it ends alone, and another one takes its place",
        Kind.INTERRUPT: "whoever runs it presses Ctrl-C: the run is to end in order",
        Kind.POWER_LOSS: "its host is gone: nobody hears of it, and what was not synced is lost or torn",
        Kind.DROP: "its connections break, and both ends hear of that",
        Kind.DROP_ONE: "one of its connections breaks, and both ends hear of that",
        Kind.HALF_OPEN: "its connections break, and only it hears of that",
        Kind.STALL: "nothing passes on its connections for a while",
        Kind.PARTITION: "it and all others do not reach each other for a while",
        Kind.DEAF: "nothing reaches it for a while; it reaches all others",
        Kind.MUTE: "it reaches nobody for a while; all others reach it",
        Kind.SLOW_LINK: "its messages take fifty times as long for a while",
        Kind.DELAY: "it computes slowly for a while",
        Kind.FULL_DISK: "it can write nothing for a while: no space left",
        Kind.SLOW_DISK: "each of its writes takes long for a while",
        Kind.READ_ONLY_DISK: "it can write nothing for a while: read-only",
        Kind.CORRUPT: "its next frame arrives with a byte changed",
        Kind.DUPLICATE: "its next frame arrives twice",
        Kind.TRUNCATE: "its next frame arrives cut off",
        Kind.CLOCK_JUMP: "its wall clock jumps",
        Kind.FAST_CLOCK: "its clocks run at twice the speed",
    }
)
_LASTING: Final = frozenset(
    {
        Kind.STOP,
        Kind.SUSPEND,
        Kind.STALL,
        Kind.PARTITION,
        Kind.DEAF,
        Kind.MUTE,
        Kind.SLOW_LINK,
        Kind.DELAY,
        Kind.FULL_DISK,
        Kind.SLOW_DISK,
        Kind.READ_ONLY_DISK,
    }
)
_FORM: Final = re.compile(
    r"(?P<kind>[a-z-]+) (?P<member>run|(?:server|worker|agent) [0-9]+) "
    r'(?:at its (?P<nth>[0-9,]+)[a-z]{2} "(?P<mark>[^"]+)"'
    r"|after (?P<after>[0-9.]+) s)(?: for (?P<seconds>[0-9.]+) s)?"
)


@dataclass(frozen=True)
class Fault:
    """One fault, which happens once.

    Attributes:
        kind: the thing that happens.
        member: `worker 1`; for `interrupt`, `run`.
        mark: the label of the point of this member at which it happens; empty for one at a time.
        nth: which of its points of that label, from 1.
        after_s: virtual seconds from the run's beginning, where there is no mark.
        seconds: how long it lasts; 0 where it does not.
    """

    kind: Kind
    member: str
    mark: str = ""
    nth: int = 1
    after_s: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        when = f'at its {ordinal(self.nth)} "{self.mark}"' if self.mark else f"after {self.after_s:.6f} s"
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind.value} {self.member} {when}{lasts}"

    def of(self, member: str) -> Fault:
        """The same of another member."""
        return replace(self, member=member)


def fault_from(text: str) -> Fault:
    """The fault that a text tells.

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f'expected KIND MEMBER at its NTH "POINT" [for T s], or KIND MEMBER after T s [for T s], got {text!r}'
        )
    at: dict[str, Any] = {"after_s": float(found["after"])} if found["after"] else {}
    if found["mark"]:
        at = {"mark": found["mark"], "nth": int(found["nth"].replace(",", ""))}
    return Fault(Kind(found["kind"]), found["member"], seconds=float(found["seconds"] or 0.0), **at)
