"""Messages and faults that have come to members, and the states in which they came. Pure.

The state of a member is the point of `[chaos]` that it passed last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from taihu.explore.faults import Kind
from taihu.explore.tasks import Process

STATES: Final = (
    "start-up",
    "join",
    "initialize",
    "push",
    "sum",
    "update",
    "fetch",
    "checkpoint-write",
    "checkpoint-rename",
    "evaluation",
    "save",
    "farewell",
)
"""The points that members pass, in their order (taihu.core.chaos.points)."""

_STATES: Final = frozenset(STATES)
_RECEIVE: Final = "receive "


class Coverage:
    """Pairs of a state and what came then: `worker, push: Begin`.

    Attributes:
        pairs: that a run has reached.
    """

    def __init__(self) -> None:
        self.pairs: set[str] = set()
        self._states: dict[Process, str] = {}

    def marked(self, label: str, process: Process) -> None:
        """`process` has come to a point."""
        if label in _STATES:
            self._states[process] = label
        elif label.startswith(_RECEIVE):
            self.came(process, label[len(_RECEIVE) :])

    def came(self, process: Process, what: str) -> None:
        """A message or a fault has come to `process`."""
        role = process.member.partition(" ")[0]
        self.pairs.add(f"{role}, {self._states.get(process, 'start-up')}: {what}")


def table_of(pairs: Iterable[str]) -> Iterator[str]:
    """Lines of what has come to whom in which state, and of what never has."""
    known = set(pairs)
    split = [pair.partition(": ") for pair in known]
    roles = sorted({place.partition(", ")[0] for place, _, _ in split})
    for role in roles:
        own = [(place, what) for place, _, what in split if place.startswith(f"{role}, ")]
        states = [state for state in STATES if any(place == f"{role}, {state}" for place, _ in own)]
        for title, whats in (("messages", _messages(own)), ("faults", _faults(own))):
            missing = [
                f"{what} in {state}" for what in whats for state in states if f"{role}, {state}: {what}" not in known
            ]
            reached = len(whats) * len(states) - len(missing)
            yield f"{role}: {reached} of {len(whats) * len(states)} pairs of {len(states)} states and {title}"
            if missing:
                yield f"  never: {', '.join(missing)}"


def _messages(own: Iterable[tuple[str, str]]) -> list[str]:
    return sorted({what for _, what in own} - set(map(str, Kind)))


def _faults(own: Iterable[tuple[str, str]]) -> list[str]:
    return sorted({what for _, what in own} & set(map(str, Kind)))
