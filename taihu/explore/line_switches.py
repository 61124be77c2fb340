"""Switches of tasks between any two lines of some modules: so a lock that is missing is seen.

Elsewhere tasks are switched where they wait or pass a point: what they do between two of these is never disturbed,
whether or not a lock protects it. Tasks have to be OS threads (`carriers.Batons`), each of which is traced.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from random import Random
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Self

from taihu.explore.scheduler import Scheduler

# Python's code that holds no lock of its own while it calls the project's; the explorer's holds none either.
_LOCK_FREE: Final = frozenset({"contextlib", "threading", "dataclasses", "abc", "typing", "collections.abc"})
_EXPLORER: Final = "taihu.explore."
# Between two tasks: what timers have done there passes no points.
_BETWEEN_TASKS: Final = frozenset({"_pick"})


# What daemons share between their threads; `lines_of` takes modules of them that have locks, or are given one.
_ROOMS: Final = (
    "taihu.core.chaos",
    "taihu.core.checkpoint",
    "taihu.core.coordination",
    "taihu.core.history",
    "taihu.allreduce",
    "taihu.ps_server",
    "taihu.core.wire",
    "taihu.worker.exchange",
    "taihu.worker.reporting",
)
_LOCKS: Final = re.compile(r"\b(Lock|RLock|Condition)\(|^    lock: ", re.MULTILINE)


@dataclass(frozen=True)
class LinesDraw:
    """The lines between which tasks are held up: see `LineSwitches`."""

    modules: tuple[str, ...]
    share: float
    within_lines: bool

    def __str__(self) -> str:
        where = "within and between" if self.within_lines else "between"
        return f"held up {where} lines of {', '.join(self.modules)}, at {self.share:.0%} of them"


def lines_of(chance: Random) -> LinesDraw:
    """Draw where tasks are held up: in one place with locks, often, since a missing one is seen in a short moment."""
    module = chance.choice(_modules_with_locks())
    focus = module if chance.random() < 0.4 else module.rpartition(".")[0]
    return LinesDraw((focus,), chance.choice((0.01, 0.05, 0.2)), chance.random() < 0.3)


@cache
def _modules_with_locks() -> tuple[str, ...]:
    """By their sources: those that are loaded are others in each process."""
    found: list[str] = []
    for room in _ROOMS:
        spec = find_spec(room)
        for folder in (spec and spec.submodule_search_locations) or ():
            for file in sorted(Path(folder).rglob("*.py")):
                if _LOCKS.search(file.read_text(encoding="utf-8")):
                    below = file.relative_to(folder).with_suffix("").parts
                    found.append(".".join((room, *below)))
    return tuple(found)


class LineSwitches:
    """During the block, tasks that begin are held up between lines, too.

    Code that others call while they hold a real lock is left alone, as is code at the top of modules.

    Args:
        scheduler: of the run, whose carrier is `Batons`.
        modules: names of the modules whose lines count; with a package, all in it.
        chance: what it draws from.
        share: of the lines that are come to, those at which another task goes on.
        within_lines: whether they are held up also within lines, between any two instructions: `count += 1` is three.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        modules: Collection[str],
        chance: Random,
        share: float,
        *,
        within_lines: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._modules = tuple(modules)
        self._draw = chance.random
        self._share = share
        self._event = "opcode" if within_lines else "line"
        self._known: dict[CodeType, bool] = {}
        self.count = 0
        """The number of times that tasks were held up."""

    def __enter__(self) -> Self:
        threading.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        threading.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        """Python calls a function; returns what traces its lines, if anything does."""
        counts = self._known.get(frame.f_code)
        if counts is None:
            counts = self._known[frame.f_code] = self._counts(frame)
        if not counts:
            return None
        if self._event == "opcode":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._came_to

    def _counts(self, frame: FrameType) -> bool:
        name = str(frame.f_globals.get("__name__", ""))
        # What makes modules and classes is run once in a process, by the first run that needs it.
        is_function = bool(frame.f_code.co_flags & CO_OPTIMIZED)
        return is_function and not name.startswith(_EXPLORER) and self._is_in(frame, self._modules)

    @staticmethod
    def _is_in(frame: FrameType, modules: Collection[str]) -> bool:
        name = str(frame.f_globals.get("__name__", ""))
        return any(name == each or name.startswith(f"{each}.") for each in modules)

    def _came_to(self, frame: FrameType, event: str, _: Any) -> Any:
        """A task is about to run a line, or an instruction."""
        if event == self._event and self._draw() < self._share and not self._scheduler.is_over and self._may(frame):
            self.count += 1
            self._scheduler.point("line", gives_way=True)
        return self._came_to

    def _may(self, frame: FrameType | None) -> bool:
        """Whether nobody who called has a real lock, as far as can be known: all are the project's, or hold none."""
        while frame is not None:
            name = str(frame.f_globals.get("__name__", ""))
            if name.startswith(_EXPLORER):
                if frame.f_code.co_name in _BETWEEN_TASKS:
                    return False
            elif name not in _LOCK_FREE and not self._is_in(frame, self._modules) and not _is_own(name):
                return False
            frame = frame.f_back
        return True


def _is_own(name: str) -> bool:
    return name.partition(".")[0] == "taihu"
