"""The lives of a script's processes: all are started again where one was killed, and the script keeps its state."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taihu.core.checkpoint.run_memory import named_memory
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.restarts import Restarts
from taihu.local.processes import DaemonFailedError

__all__ = ["ScriptLives"]

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


class ScriptLives:
    """Says whether all processes of a script are started again.

    Args:
        folder: in which the script keeps its state, if it does; None where nobody can.
        most: lives that may follow within an hour.

    Attributes:
        count: of the lives that are over.
    """

    def __init__(self, folder: Path | None, most: int) -> None:
        self.folder = folder
        self.count = 0
        self._most = most
        self._restarts = Restarts(most, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)

    @property
    def are_possible(self) -> bool:
        """Whether others may follow the first one."""
        return self.folder is not None and self._most > 0

    def may_follow(self, error: DaemonFailedError) -> bool:
        """Whether another life may follow where a process has ended so: it was killed, and the script keeps state."""
        if self.folder is None or not self.are_possible or not error.was_killed:
            return False
        return named_memory(self.folder) is not None or bool(CheckpointStore(self.folder).steps())

    def pause_s(self, error: DaemonFailedError, now: float) -> float:
        """The seconds until the next life begins; raises `error` where there is none."""
        pause_s = self._restarts.pause_s(now, self.count, error.name) if self.may_follow(error) else None
        if pause_s is None:
            told = f"checkpoint.restarts = {self._most} within an hour are used up" if self.may_follow(error) else ""
            raise error.with_remedy(told)
        self.count += 1
        return pause_s
