"""Ends of simulated processes by themselves, and signals that they send: whoever started them sees to it."""

from __future__ import annotations

from typing import Protocol

from taihu.explore.tasks import Process


class Starter(Protocol):
    """Whoever started the processes of a run."""

    def signal(self, process: Process, number: int) -> None:
        """A process gets a signal."""
        ...

    def exit(self, process: Process, code: int) -> None:
        """A process ends at once, with this exit code."""
        ...


class Endings:
    """The one who started the processes of a run, as stand-ins find it.

    Args:
        starter: of them.
    """

    def __init__(self, starter: Starter) -> None:
        self.starter = starter
