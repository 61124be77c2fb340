"""Questions to a process that explores, and its answers: one JSON line each. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Self

AGENTS_EVERY: Final = 5
"""Of so many seeds, one is explored once more with agents, where both kinds of runs are."""


@dataclass(frozen=True)
class Smaller:
    """A case that is made smaller than what its seed draws.

    Attributes:
        faults: in words; None for those that are drawn.
        steps: of the run; None for the drawn ones.
        workers: how many; None for the drawn ones.
        servers: how many, 0 for a ring; None for the drawn ones.
        supervisor: who starts processes again; None for the drawn one.
        holds: points at which tasks are held up, of the first ones; None for all.
        every_steps: between two checkpoints; None for the drawn ones.
        agents: the seconds at which machines come whose agents run the workers; None for the drawn ones, if any are.
    """

    faults: Sequence[str] | None = None
    steps: int | None = None
    workers: int | None = None
    servers: int | None = None
    holds: int | None = None
    supervisor: str | None = None
    every_steps: int | None = None
    agents: Sequence[float] | None = None

    def __str__(self) -> str:
        holds = "as often as drawn" if self.holds is None else f"{self.holds} times"
        size = f"{self.servers} servers, {self.workers} workers, {self.steps} steps"
        agents = "" if self.agents is None else f", {len(self.agents)} agents"
        return f"{len(self.faults or ())} faults, {size}{agents}, held up {holds}"


@dataclass(frozen=True)
class Work:
    """The seeds that one process explores.

    Attributes:
        first: the first seed.
        count: how many.
        stride: from one seed to the next one.
        picked: seeds in place of these.
        carrier: what carries tasks.
        between_lines: whether tasks are held up between lines, too; the carrier has to be `threads`.
        tells: whether the story of each run is told.
        changes: wrong changes to the code, each a module, a text that it has once, and that in its place.
        smaller: a smaller case in place of what the seed draws; None for that.
        cases: seeds in place of these, each with a smaller case of its own.
        agents: whether agents run the workers; None has one in `AGENTS_EVERY` seeds explored once more so.
    """

    first: int = 0
    count: int = 1
    stride: int = 1
    picked: Sequence[int] = ()
    carrier: str = "greenlets"
    between_lines: bool = False
    tells: bool = False
    changes: Sequence[tuple[str, str, str]] = ()
    smaller: Smaller | None = None
    cases: Sequence[tuple[int, Smaller]] = ()
    agents: bool | None = False

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds."""
        return self.picked or range(self.first, self.first + self.count * self.stride, self.stride)

    @property
    def all_cases(self) -> Iterator[tuple[int, Smaller | None, bool]]:
        """The seeds, each with its smaller case, and whether agents run the workers: there may be no end of them."""
        for seed, smaller in self.cases:
            yield seed, smaller, bool(self.agents) or smaller.agents is not None
        for seed in () if self.cases else self.seeds:
            if not self.agents:
                yield seed, self.smaller, self.smaller is not None and self.smaller.agents is not None
            if self.agents or (self.agents is None and seed % AGENTS_EVERY == 0):
                yield seed, self.smaller, True

    def as_json(self) -> str:
        """A line for a process's standard input."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The work that such a line asks for."""
        told = json.loads(text)
        smaller = told.pop("smaller", None)
        cases = tuple((seed, Smaller(**case)) for seed, case in told.pop("cases", ()))
        return cls(**told, smaller=None if smaller is None else Smaller(**smaller), cases=cases)


@dataclass(frozen=True)
class Found:
    """The outcome of one seed.

    Attributes:
        seed: of the run.
        problems: what is wrong; none where all is well.
        case: its lines.
        drawn: the case, as one to be made smaller.
        agents: whether agents run the workers.
        done: faults that happened.
        ended_well: whether every member has done its part.
        virtual_s: that it lasted.
        switches: of tasks.
        digest: of all switches.
        real_s: seconds of this machine, with those of the calm run where it was new.
        reached: pairs of a state and what came then which no earlier seed of this process has reached.
        story: lines, where they were asked for.
    """

    seed: int
    problems: list[str]
    case: list[str]
    done: list[str]
    ended_well: bool
    virtual_s: float
    switches: int
    digest: str
    real_s: float
    reached: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    drawn: Smaller | None = None
    agents: bool = False

    def as_json(self) -> str:
        """A line of a process's standard output."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The outcome that a line tells."""
        told = json.loads(text)
        drawn = told.pop("drawn", None)
        return cls(**told, drawn=None if drawn is None else Smaller(**drawn))
