"""The lives of a script's processes: all are started again where one was killed, and the script keeps its state."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import write_text
from taihu.core.checkpoint.held_steps import held_in
from taihu.core.checkpoint.run_memory import named_memory
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.restarts import Restarts
from taihu.core.process.ending import EXIT_BEGINS_AGAIN
from taihu.local.processes.processes import DaemonFailedError

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_ASKED: Final = "workers.asked"
_WORKERS: Final = "workers"
_REFUSED: Final = "refused"


class Numbers:
    """The numbers of workers that a script may have.

    Args:
        first: to begin with.
        least, most: in all lives; None for `first`, and for any.

    Raises:
        ConfigError: the first is outside.
    """

    def __init__(self, first: int, least: int | None = None, most: int | None = None) -> None:
        self.first, self.least, self.most = first, first if least is None else least, most
        if self.least > first:
            raise ConfigError(f"--min-workers {self.least}: begins with {first}; give --workers {self.least} or more")
        if most is not None and most < first:
            raise ConfigError(f"--max-workers {most}: begins with {first}; give --workers {most} or fewer")
        self._least_asked = 1 if least is None else least

    def refusal(self, workers: int) -> str | None:
        """The reason for which the script does not go on with so many workers; None where it does."""
        if workers < self._least_asked:
            return f"--min-workers is {self._least_asked}"
        if self.most is not None and workers > self.most:
            return f"--max-workers is {self.most}"
        return None


def is_lost(error: DaemonFailedError) -> bool:
    """Whether a process was killed, or ended because others were and it cannot go on with new ones."""
    return error.was_killed or error.exit_code == EXIT_BEGINS_AGAIN


class ScriptLives:
    """Says whether all processes of a script are started again, and with how many workers.

    Where the script gets no further between two kills, one worker is left out, as long as there are more than the
    least: this machine may have too little memory for all.

    Args:
        folder: in which the script keeps its state, if it does; None where nobody can.
        most: lives that may follow within an hour.
        numbers: of workers.
        run: the folder of the run, in which others ask for numbers; None where it has none.

    Attributes:
        count: of the lives that are over.
        workers: of the life that is, or comes.
    """

    def __init__(self, folder: Path | None, most: int, numbers: Numbers, run: Path | None = None) -> None:
        self.folder = folder
        self.count = 0
        self.workers = numbers.first
        self._most = most
        self._numbers = numbers
        self._asked = None if run is None else run / _ASKED
        self._restarts = Restarts(most, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        self._killed_behind: int | None = None

    @property
    def are_possible(self) -> bool:
        """Whether others may follow the first one."""
        return self.folder is not None and self._most > 0

    @property
    def has_state(self) -> bool:
        """Whether the script has kept anything to go on from."""
        return self.folder is not None and (
            named_memory(self.folder) is not None or bool(CheckpointStore(self.folder).steps())
        )

    def may_follow(self, error: DaemonFailedError) -> bool:
        """Whether others may go on where a process has ended so: it was lost, and the script keeps state."""
        return self.are_possible and is_lost(error) and self.has_state

    def pause_s(self, error: DaemonFailedError, now: float) -> float:
        """The seconds until the next life begins; raises `error` where there is none."""
        behind = self._step
        pause_s = self._restarts.pause_s(now, behind) if self.may_follow(error) else None
        if pause_s is None:
            told = f"checkpoint.restarts = {self._most} within an hour are used up" if self.may_follow(error) else ""
            raise error.with_remedy(told)
        is_in_vain = behind == self._killed_behind
        self._killed_behind = behind
        if is_in_vain and self.workers > self._numbers.least:
            self.workers, self._killed_behind = self.workers - 1, None
        self.count += 1
        return pause_s

    def asked(self) -> int | None:
        """The number of workers that somebody asks for, which another life has; None where nobody does."""
        wanted = _read(self._asked).get(_WORKERS)
        if not isinstance(wanted, int) or self._asked is None:
            return None
        why = self._numbers.refusal(wanted)
        if why is None and not self.has_state:
            why = "the script has made no taihu.torch.state yet, from which it could go on"
        if why is not None:
            write_text(self._asked, json.dumps({_REFUSED: why}))
            return None
        self._asked.unlink(missing_ok=True)
        return None if wanted == self.workers else wanted

    def go_on_with(self, workers: int) -> None:
        """The next life has so many workers."""
        self.workers, self._killed_behind = workers, None
        self.count += 1

    @property
    def _step(self) -> int:
        """The last step that the script has kept; 0 where there is none."""
        if self.folder is None or (memory := named_memory(self.folder)) is None:
            return 0
        return max((label.step for labels in held_in(memory).values() for label in labels), default=0)


def refused(run: Path, workers: int, pause: Callable[[], None]) -> str | None:
    """Ask for so many workers of the script whose run this is, and wait for the answer.

    Args:
        run: the folder of the run.
        workers: that it is to go on with.
        pause: is called between two looks, and ends this by raising.

    Returns:
        The reason for which it was refused; None where it was not.

    Raises:
        WriteError: the folder cannot be written.
    """
    asked = run / _ASKED
    write_text(asked, json.dumps({_WORKERS: workers}))
    try:
        while answer := _read(asked):
            if _REFUSED in answer:
                return str(answer[_REFUSED])
            pause()
    finally:
        asked.unlink(missing_ok=True)
    return None


def _read(asked: Path | None) -> dict[str, object]:
    """The words of the file in which a number is asked for; none where there is no file."""
    with suppress(OSError, ValueError):
        if asked is not None and isinstance(read := json.loads(asked.read_text()), dict):
            return read
    return {}
