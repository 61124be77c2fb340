"""Findings: what is wrong in a history, and where."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.core.history.records import ALL


@dataclass(frozen=True, order=True)
class Finding:
    """Something that a model of training would not have done.

    Attributes:
        step: in which.
        member: `worker 1`; empty for none alone.
        text: what is wrong, what was expected.
        group: of the plan; -1 for all.
        generation: its place, from 1; 0 for the whole run.
    """

    step: int
    member: str
    text: str
    group: int = ALL
    generation: int = 0

    def __str__(self) -> str:
        places = [f"step {self.step}"] if self.step else []
        places += [f"group {self.group}"] if self.group != ALL else []
        places += [self.member] if self.member else []
        return f"{', '.join(places)}: {self.text}" if places else self.text
