"""The generations of a recorded run, their order, and which of their steps count. Pure.

A generation begins behind a step that an earlier one has made. Of the one that made it last, steps up to that one
count; what was done behind it was given up. Of the last generation all steps count, once every process has told its
end. A generation that is lost early takes nothing back: the next one may go on from what members still hold of an
earlier one. Nor does one that a process begins which is started again behind the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from taihu.core.history.findings import Finding
from taihu.core.history.records import Begin, End, Push, Record, Skip


@dataclass(frozen=True)
class Life:
    """The part of one process in one generation, and how the run ended, if it ended well then."""

    begin: Begin
    records: tuple[Record, ...] = ()
    end: End | None = None


@dataclass(frozen=True)
class Generation:
    """One generation: the steps behind `after` up to `upto` count.

    Attributes:
        place: from 1, in the order in which they were.
        lives: by member.
        has_ended: whether the run ended well in it.
    """

    place: int
    number: int
    after: int
    upto: int
    lives: Mapping[str, Life] = field(default_factory=dict)
    has_ended: bool = False

    @property
    def begin(self) -> Begin:
        """The beginning that all of its members were told alike."""
        return next(iter(self.lives.values())).begin

    @property
    def last_begun(self) -> int:
        """The last step that any worker has begun; 0 for none."""
        return max((each.step for _, life in self.workers() for each in life.records if begins(each)), default=0)

    def workers(self) -> list[tuple[int, Life]]:
        """Workers by rank."""
        return sorted((int(name.split()[1]), life) for name, life in self.lives.items() if name.startswith("worker"))

    def servers(self) -> list[tuple[int, Life]]:
        """Servers by index."""
        return sorted((int(name.split()[1]), life) for name, life in self.lives.items() if name.startswith("server"))


def lives_of(history: Sequence[Record]) -> tuple[list[Life], list[Finding]]:
    """The lives of the processes that one file tells of, and what is wrong with it."""
    lives: list[tuple[Begin, list[Record]]] = []
    for record in history:
        if isinstance(record, Begin):
            # A process that was lost before it took part, and its successor; or one that was refused, as its place
            # was taken, or the next generation had begun: numbers are drawn at random, where there may be several.
            told = [begin for begin, _ in lives]
            if (record.generation and record in told) or (told and told[-1] == record and not lives[-1][1]):
                continue
            lives.append((record, []))
        elif not lives:
            return [], [Finding(0, "", "a history does not begin with the generation; was the file cut?")]
        else:
            lives[-1][1].append(record)
    made, findings = [], []
    for begin, records in lives:
        ends = [record for record in records if isinstance(record, End)]
        if ends and (len(ends) > 1 or records[-1] is not ends[0]):
            findings.append(Finding(begin.after, begin.member, "something was done behind the end of the run"))
        done = tuple(each for each in records if not isinstance(each, End))
        made.append(Life(begin, done, ends[0] if ends else None))
    numbers = [life.begin.generation for life in made]
    if len(set(numbers)) < len(numbers) or len({life.begin.member for life in made}) > 1:
        findings.append(Finding(0, lives[0][0].member, "several runs were recorded there; give each a folder"))
    return made, findings


def generations_of(histories: Sequence[Sequence[Life]]) -> tuple[list[Generation], list[Finding]]:
    """The generations in their order, by the lives of each process; and what is wrong with these."""
    findings, made = [], []
    for place, number in enumerate(_ordered([[life.begin.generation for life in lives] for lives in histories]), 1):
        lives = _of_generation(histories, number)
        generation = Generation(place, number, next(iter(lives.values())).begin.after, 0, lives)
        for member, life in lives.items():
            if replace(life.begin, member="") != replace(generation.begin, member=""):
                findings.append(Finding(generation.after, member, "it was told of another run, or another step"))
        made.append(generation)
    ended = next((place for place, generation in enumerate(made, 1) if _has_ended(generation)), len(made))
    if not any(life.records or life.end for generation in made[ended:] for life in generation.lives.values()):
        made = made[:ended]
    return _counted(made), findings


def _of_generation(histories: Sequence[Sequence[Life]], number: int) -> dict[str, Life]:
    """The lives of a generation by member: of two in one place that one that took part."""
    lives: dict[str, Life] = {}
    for life in (life for each in histories for life in each if life.begin.generation == number):
        former = lives.get(life.begin.member)
        if former is None or len(former.records) <= len(life.records):
            lives[life.begin.member] = life
    return lives


def _counted(generations: Sequence[Generation]) -> list[Generation]:
    """The generations with the steps of them that count: each step in one of them."""
    if not generations:
        return []
    uptos = {each.place: each.after for each in generations}
    last = generations[-1]
    if _has_ended(last):
        uptos[last.place] = max(life.end.step for life in last.lives.values() if life.end is not None)
    earlier, after = generations[:-1], last.after
    while behind := [each for each in earlier if each.after < after]:
        owner = next((each for each in reversed(behind) if each.last_begun >= after), behind[-1])
        uptos[owner.place] = after
        earlier, after = [each for each in behind if each.place < owner.place], owner.after
    return [replace(each, upto=uptos[each.place], has_ended=_has_ended(each)) for each in generations]


def begins(record: Record) -> TypeGuard[Push | Skip]:
    """Whether it tells that a worker has begun its step."""
    return isinstance(record, Push | Skip)


def _has_ended(generation: Generation) -> bool:
    """Whether every process has told its end."""
    ends = [life for life in generation.lives.values() if life.end is not None]
    return len(ends) == generation.begin.servers + generation.begin.workers


def _ordered(sequences: Sequence[Sequence[int]]) -> list[int]:
    """All numbers once, such that those of every sequence keep their order as far as that is possible."""
    waiting = [list(dict.fromkeys(each)) for each in sequences]
    ordered: list[int] = []
    while any(waiting):
        heads = [each[0] for each in waiting if each]
        free = [head for head in heads if not any(head in each[1:] for each in waiting)]
        ordered.append((free or heads)[0])
        waiting = [[number for number in each if number != ordered[-1]] for each in waiting]
    return ordered
