"""Many seeds on all cores: processes that explore, their findings, and how far they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event, Thread

from taihu.core.base.errors import RunError
from taihu.explore.campaign.work import Found, Work


@dataclass
class Summary:
    """All that was explored so far.

    Attributes:
        seeds: that were run.
        faults: that happened, by their kinds.
        ended_well: runs in which every member did its part.
        virtual_s: of all runs.
        switches: of all runs.
        begun_s: when this began.
        reached: pairs of a state and what came then.
        failed: seeds with problems.
    """

    seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ended_well: int = 0
    virtual_s: float = 0.0
    switches: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    reached: set[str] = field(default_factory=set)
    failed: list[Found] = field(default_factory=list)

    def add(self, found: Found) -> None:
        """Take one outcome in."""
        self.seeds += 1
        self.faults.update(line.split()[1] for line in found.done)
        self.ended_well += found.ended_well
        self.virtual_s += found.virtual_s
        self.switches += found.switches
        self.reached.update(found.reached)
        if found.problems:
            self.failed.append(found)

    @property
    def per_hour(self) -> float:
        """Runs in an hour at this pace."""
        return 3600.0 * self.seeds / max(1e-9, time.monotonic() - self.begun_s)


def explore(work: Work, processes: int, each: Callable[[Found], bool]) -> None:
    """Explore the seeds of `work` in so many processes; `each` outcome may end it by returning False.

    Raises:
        RunError: a process ended before its time.
    """
    parts = [
        replace(
            work,
            first=work.first + place * work.stride,
            count=_share(work.count, place, processes),
            stride=processes * work.stride,
            picked=work.picked[place::processes],
        )
        for place in range(processes)
    ]
    answers: SimpleQueue[Found | None] = SimpleQueue()
    children: list[_Child] = []
    try:
        for part in parts:
            if part.seeds:
                with _interrupted_later():
                    children.append(_Child(part, answers))
        for found in _merged(children, answers):
            if not each(found):
                return
    finally:
        for child in children:
            child.end()


def explored(work: Work) -> list[Found]:
    """The outcomes of all seeds of `work`, by one process."""
    found: list[Found] = []

    def each(one: Found) -> bool:
        found.append(one)
        return True

    explore(work, 1, each)
    return found


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """A Ctrl-C during the block arrives behind it, and never in a process that is started there.

    It goes to all processes of a terminal: one that explores would take it for an event of a simulated world.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _share(count: int, place: int, processes: int) -> int:
    return (count - place + processes - 1) // processes


class _Child:
    """A process that explores, and the thread that reads what it says.

    Args:
        work: of it.
        answers: gets every outcome, and None at the end.
    """

    def __init__(self, work: Work, answers: SimpleQueue[Found | None]) -> None:
        self._answers = answers
        self._has_said_all = Event()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "taihu.explore.campaign.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._reading = Thread(target=self._read, name="exploring", daemon=True)
        self._reading.start()
        assert self.process.stdin is not None  # noqa: S101
        with suppress(BrokenPipeError), self.process.stdin as stream:  # it may have ended: its exit code tells
            stream.write(work.as_json() + "\n")

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # it was not ended in the middle of one
                    self._answers.put(Found.from_json(line))
        self._has_said_all.set()
        self._answers.put(None)

    def check(self) -> None:
        """Raise RunError if it has ended otherwise than by having done its work."""
        if self._has_said_all.is_set() and self.process.wait():
            raise RunError(f"a process that explores ended with exit code {self.process.returncode}; see above")

    def end(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.wait()
        self._reading.join()


def _merged(children: Sequence[_Child], answers: SimpleQueue[Found | None]) -> Iterator[Found]:
    """The outcomes of all children, as they come."""
    left = len(children)
    while left:
        found = answers.get()
        if found is not None:
            yield found
        else:
            left -= 1
            for child in children:
                child.check()
