"""The faults of this process: done as it passes their points, or at their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import structlog

from taihu.core.chaos.acts import do_here
from taihu.core.chaos.disk import Disk
from taihu.core.chaos.faults import Fault, FaultKind, fault_from
from taihu.core.chaos.frames import FaultyFrames
from taihu.core.chaos.memory import ChaosMemory
from taihu.core.chaos.points import Point, Written
from taihu.core.chaos.schedule import Schedule
from taihu.core.system.threads import Lock, spawn
from taihu.core.wire.base.clock import Clock, SystemClock, WallClock

_LOOK_S: Final = 0.1


class ProcessChaos:
    """Faults of the process `member`; any thread may pass a point. See `Chaos`.

    Args:
        member: `worker 1`.
        schedule: of its faults, which are not done again where `memory` knows of them.
        memory: of the run.
        drawn: faults of all members with their names, in the order of their times; those before this process began
            are another one's, or nobody's.
        listens: whether faults are done that `ChaosMemory.ask` asks for.
        wall: the clock of this process, which jumps. Faults are not due by it: all processes agree on their times.
        clock: what their times are waited for by.
        do: does a fault, but those of disks, frames and clocks.
    """

    def __init__(
        self,
        member: str,
        schedule: Schedule,
        memory: ChaosMemory,
        drawn: Iterator[tuple[str, Fault]] | None = None,
        *,
        listens: bool = False,
        wall: WallClock | None = None,
        clock: Clock | None = None,
        do: Callable[[Fault], None] = do_here,
    ) -> None:
        self._member = member
        self._schedule = schedule
        self._memory = memory
        self._drawn = drawn
        self._listens = listens
        self.enabled = True
        self.frames = FaultyFrames()
        self._disk = Disk()
        self._wall = wall or WallClock()
        self._clock = clock or SystemClock()
        self._do = do
        self._lock = Lock()
        self._log = structlog.get_logger()

    def start(self) -> None:
        """Begin to do what is due at a time, on a thread that ends with the process."""
        # All processes agree on the run's age by the wall clock, once: no jump of it moves what is due later.
        begun = self._clock.now() - self._memory.age_s()
        if self._schedule.timed() or self._drawn is not None:
            spawn("chaos", self._wait_for_all, begun)
        if self._listens:
            spawn("chaos asked for", self._listen)

    def passes(self, point: Point, step: int = 0) -> None:
        """Do what is due at `point`."""
        if self._schedule.is_empty:
            return
        with self._lock:
            due = self._schedule.passed(point, step)
        for name, fault in due.items():
            self._happen(name, fault, point=point.value, step=step)

    def disk(self, file: Written) -> Written:
        """`file` on a disk that may be full or slow."""
        return self._disk.over(file)

    def _happen(self, name: str, fault: Fault, **told: object) -> None:
        if self._memory.claim(name, fault=str(fault), member=self._member, **told):
            self._log.warning("fault", fault=str(fault), **told)
            if fault.kind is FaultKind.CLOCK_JUMP:
                self._wall.jump(fault.lasts_s)
            elif not (self._disk.takes(fault) or self.frames.takes(fault)):
                self._do(fault)

    def _wait_for_all(self, begun_s: float) -> None:
        for due_s, name, fault in self._schedule.timed():
            self._wait_until(begun_s + due_s)
            self._happen(name, fault)
        started_s = self._clock.now()
        for name, fault in self._drawn or ():
            due_s = begun_s + (fault.after_s or 0.0)
            if fault.member == self._member and due_s > started_s:
                self._wait_until(due_s)
                self._happen(name, fault)

    def _listen(self) -> None:
        done = set(self._memory.asked())
        while True:
            self._clock.sleep(_LOOK_S)
            for name, text in self._memory.asked().items():
                fault = fault_from(text)
                if name not in done and fault.member == self._member:
                    done.add(name)
                    self._happen(name, fault)

    def _wait_until(self, moment_s: float) -> None:
        self._clock.sleep(max(0.0, moment_s - self._clock.now()))
