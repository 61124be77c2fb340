"""Ends of runs of simulated worlds. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

_MISSED_BY_NOBODY: Final = (-9, 130)
"""Exit codes of those that are killed or interrupted behind their results."""


@dataclass(frozen=True)
class End:
    """The end of one process.

    Attributes:
        name: `worker 1`.
        life: 0 for the first process of this member.
        code: its exit code, -9 where it was killed; 0 where that was done because it had told its results; None where
            it had not ended.
        words: its last ones.
        traceback: of an error that is none of the project's.
        parameters: the hash of the parameters that a worker told; empty for none.
        was_stuck: whether it has ended itself because nothing moved in it any more (`taihu.core.process.last_will`).
        at_s: virtual seconds from the run's beginning; infinity where it had not ended.
    """

    name: str
    life: int
    code: int | None
    words: str = ""
    traceback: str = ""
    parameters: str = ""
    was_stuck: bool = False
    at_s: float = math.inf

    @property
    def is_of_agent(self) -> bool:
        """Whether it is that of an agent."""
        return self.name.startswith("agent")


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        ends: of the processes that were there last, by members.
        former: of those that others took the places of.
        resumed: processes that went on with a run which had not ended well, from its newest checkpoint.
        standstill: the words of a run that did not end; empty where it did.
        supervision: the words that whoever supervised it ended with; empty where all went well.
        said: the lines that it has shown.
        failures: tracebacks of threads, and of handlers of calls, that an error ended.
        findings: of the history's checker.
        generations: of members that there were; 0 where that is not known.
        told_from: the first step that the history tells of; 0 where that is not known.
        made_again: completed steps that a later generation has made again.
        checkpoints: steps of those that count, the newest first.
        damaged: what is wrong with some of these.
        left: threads and files that processes have left which did their part.
        connected: connections that such processes have left.
        done: faults that happened, with their times.
        virtual_s: that it lasted.
        switches: of tasks.
        points: that were passed.
        digest: a hash of all switches and their times.
        reached: pairs of a state and what came then; see `Coverage`.
        story: lines.
    """

    ends: dict[str, End]
    former: tuple[End, ...]
    standstill: str
    supervision: str
    said: tuple[str, ...]
    failures: tuple[str, ...]
    findings: tuple[str, ...]
    generations: int
    told_from: int
    made_again: int
    checkpoints: tuple[int, ...]
    damaged: tuple[str, ...]
    left: tuple[str, ...]
    connected: tuple[str, ...]
    done: tuple[str, ...]
    virtual_s: float
    switches: int
    points: int
    digest: str
    reached: frozenset[str] = field(default=frozenset(), repr=False)
    resumed: tuple[End, ...] = ()
    story: tuple[str, ...] = field(default=(), repr=False)

    @property
    def parameters(self) -> set[str]:
        """The hashes that workers told which ended well, or were missed by nobody: see `all_ended_well`."""
        told = {end.name: end.parameters for end in self.former if end.parameters}
        done = [end for end in self.ends.values() if self._is_done(end)]
        # One that is started again when the run has finished tells nothing: the one before has.
        return {known for end in done if (known := end.parameters or told.get(end.name, ""))}

    def _is_done(self, end: End) -> bool:
        is_over = any(each.code == 0 for each in self.ends.values())
        return end.code == 0 or (is_over and end.code in _MISSED_BY_NOBODY and bool(end.parameters))

    @property
    def all_ended_well(self) -> bool:
        """Whether every member has done its part.

        When all workers have, nobody misses a server that is killed; where anybody has ended well, the run is over,
        and nobody misses a worker that is killed, or interrupted, behind its results.
        """
        ends = self.ends.values()
        workers = [self._is_done(end) for end in ends if end.name.startswith("worker")]
        servers = [end.code in (0, -9) for end in ends if end.name.startswith("server")]
        return not self.standstill and all(workers) and all(servers)
