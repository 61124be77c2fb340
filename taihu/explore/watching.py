"""Those that are told of every point: profiles of calm runs, faults that are aimed, and stories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from taihu.explore.coverage import Coverage
from taihu.explore.faults import Fault
from taihu.explore.scheduler import BEGUN_S, Scheduler
from taihu.explore.tasks import Task

_QUIET = frozenset({"lock", "event", "get", "put", "thread", "semaphore"})


class Profile:
    """Counts how often each member passes each label. An `Observer`."""

    def __init__(self) -> None:
        self.marks: Counter[tuple[str, str]] = Counter()

    def marked(self, label: str, task: Task) -> None:
        """Count it."""
        self.marks[task.process.member, label] += 1


class Aim:
    """Has faults happen at the points that they are aimed at. An `Observer`.

    Args:
        faults: those with a mark.
        do: does a fault.
        coverage: is told of each point.
    """

    def __init__(self, faults: list[Fault], do: Callable[[Fault], None], coverage: Coverage) -> None:
        self._coverage = coverage
        self._due: dict[tuple[str, str], list[Fault]] = {}
        for fault in faults:
            self._due.setdefault((fault.member, fault.mark), []).append(fault)
        self._passed: Counter[tuple[str, str]] = Counter()
        self._do = do

    def marked(self, label: str, task: Task) -> None:
        """Do what is due here."""
        self._coverage.marked(label, task.process)
        if not self._due:
            return
        place = (task.process.member, label)
        due = self._due.get(place)
        if due is None:
            return
        self._passed[place] += 1
        for fault in [fault for fault in due if fault.nth == self._passed[place]]:
            due.remove(fault)
            self._do(fault)
        if not due:
            del self._due[place]


class Story:
    """The story of a run, a line for each event: virtual seconds, who, and what. An `Observer`.

    Args:
        scheduler: of the run.
        others: is told, too.
    """

    def __init__(self, scheduler: Scheduler, others: Aim) -> None:
        self.lines: list[str] = []
        self._scheduler = scheduler
        self._others = others

    def marked(self, label: str, task: Task) -> None:
        """Tell it, but for locks and queues."""
        if label not in _QUIET:
            self.tell(f"{task.process}", f"{task.name}: {label}")
        self._others.marked(label, task)

    def tell(self, who: str, what: str) -> None:
        """Add a line."""
        self.lines.append(f"{self._scheduler.now - BEGUN_S:11.6f}  {who:<18} {what}")
