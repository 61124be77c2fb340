"""The newest step that members of several hosts held, of which each writes its own part. Pure.

Nobody sees the memory of another host: each process says what its place holds when it asks for the next generation,
and is told which part of that to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from taihu.core.base.errors import StaleError
from taihu.core.checkpoint.copies import Copies
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.held_steps import Label


@dataclass(frozen=True)
class WrittenPart:
    """A member's part of a step, as a durable file.

    Attributes:
        label: the step, and its generation.
        file: of the part.
        run: the manifest of the run that the step is of, as its member knows it.
    """

    label: Label
    file: PartFile
    run: str


@dataclass
class _Place:
    """The words of the process in a member's place, and the time at which it has asked last."""

    life: int
    labels: frozenset[Label]
    asked_s: float
    part: WrittenPart | None = None

    def has_written(self, label: Label | None) -> bool:
        """Whether its part of a step is written."""
        return self.part is not None and self.part.label == label


@dataclass
class Gathering:
    """Finds the newest step that all keepers hold, and awaits a file of each of them.

    Args:
        keepers: names of the members that have something to keep.
        replaced_after_s: a process that has not asked for so long leaves its place to another one.
        copies: stand in for what members do not hold any more.

    Attributes:
        moves: grows with everything new that somebody has said.
    """

    keepers: Sequence[str]
    replaced_after_s: float
    copies: Copies = field(default_factory=Copies)
    moves: int = 0
    _places: dict[str, _Place] = field(default_factory=dict)
    _lost: set[Label] = field(default_factory=set)

    def holds(self, member: str, life: int, labels: frozenset[Label], now: float) -> None:
        """A process says what its place holds; one that takes the place of another writes its part again."""
        if member not in self.keepers:
            return
        known = self._places.get(member)
        if known is not None and known.life == life and known.labels == labels:
            known.asked_s = now
        elif known is None or known.life == life or now - known.asked_s > self.replaced_after_s:
            self._places[member] = _Place(life, labels, now)
            self.moves += 1

    def wanted_of(self, member: str, life: int) -> Label | None:
        """The step whose part a process is to write now; None for none."""
        label = self._candidate
        place = self._place(member, life)
        return label if place is not None and label in place.labels and not place.has_written(label) else None

    @property
    def wanted_here(self) -> tuple[str, Label] | None:
        """A member and the step of its part that whoever has the copies is to write now; None for none."""
        label = self._candidate
        for member, place in self._places.items():
            if label is not None and label not in place.labels and not place.has_written(label):
                return member, label
        return None

    def written_here(self, member: str, part: WrittenPart) -> None:
        """The copy of a member's part has been written."""
        if (place := self._places.get(member)) is not None:
            place.part = part
            self.moves += 1

    def written(self, member: str, life: int, part: WrittenPart) -> None:
        """A process has written its part of a step.

        Raises:
            StaleError: it does not hold that step.
        """
        place = self._place(member, life)
        if place is None:
            return
        if part.label not in place.labels:
            raise StaleError(f"{member} has written step {part.label.step}, which it does not hold")
        if place.part != part:
            place.part = part
            self.moves += 1

    def left_out(self, member: str, life: int, label: Label) -> None:
        """A process cannot write its part of a step: an older one is the newest."""
        if self._place(member, life) is not None:
            self.give_up(label)

    def give_up(self, label: Label) -> None:
        """A part of a step cannot be written: an older one is the newest."""
        if label not in self._lost:
            self._lost.add(label)
            self.moves += 1

    def _place(self, member: str, life: int) -> _Place | None:
        """That of a member, if it is this process that has it."""
        place = self._places.get(member)
        return place if place is not None and place.life == life else None

    @property
    def missing(self) -> tuple[str, ...]:
        """The keepers that have not said what they hold."""
        return tuple(each for each in self.keepers if each not in self._places)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The keepers that have not said what they hold or, where all have, not written what is wanted."""
        label = self._candidate
        return self.missing or tuple(each for each, place in self._places.items() if not place.has_written(label))

    @property
    def is_over(self) -> bool:
        """Whether all parts are written, or no step is held by all."""
        # Of whose steps there are copies, all are: what it does not hold tells nothing.
        have_said = any(not self.copies.covers(each) for each in self._places)
        return (have_said and not self._common) or self.parts is not None

    @property
    def parts(self) -> Mapping[str, WrittenPart] | None:
        """The parts of the newest step that all hold, when all are written."""
        label = self._candidate
        parts = {each: place.part for each, place in self._places.items() if place.part is not None}
        if label is None or any(each not in parts or parts[each].label != label for each in self.keepers):
            return None
        return parts

    @property
    def _candidate(self) -> Label | None:
        """The newest step that all hold, as soon as all have said what they hold."""
        return None if self.missing else max(self._common, key=attrgetter("step"), default=None)

    @property
    def _common(self) -> frozenset[Label]:
        """The steps that all who have said what they hold have, but for those that somebody has left out."""
        said = frozenset[Label]().union(*(place.labels for place in self._places.values()))
        return frozenset(label for label in said - self._lost if all(self._has(each, label) for each in self._places))

    def _has(self, member: str, label: Label) -> bool:
        """Whether a member that has said what it holds has this step, or its copy is there."""
        return label in self._places[member].labels or self.copies.has(member, label)
