"""Files of a run's processes on this machine: logs, and what each leaves for whoever puts a run together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from taihu.core.base.errors import RunError, WriteError
from taihu.core.base.whole_file import make_folder
from taihu.core.job.run_folder import RunFiles
from taihu.core.process.entry import InterruptedRunError
from taihu.core.trace import merge_parts


@dataclass(frozen=True)
class ProcessFiles:
    """Places of what the processes of a run leave; a process is known by its name, `worker 0`.

    Attributes:
        folder: of all of them, for as long as the run takes.
        trace: the trace of the whole run; None where nobody asked for one.
        trace_steps: the steps that are recorded, FIRST-LAST; None for all.
    """

    folder: Path
    trace: Path | None = None
    trace_steps: str | None = None

    def results(self, name: str) -> Path:
        """The results of a process."""
        return self.folder / f"{name.replace(' ', '-')}.json"

    def trace_part(self, name: str) -> Path | None:
        """The part of the trace that a process writes."""
        return None if self.trace is None else self.folder / f"trace-{name.replace(' ', '-')}.json"

    def arguments(self, name: str) -> list[str]:
        """The options of a daemon that has it leave all that."""
        part = self.trace_part(name)
        steps = [] if self.trace_steps is None else ["--trace-steps", self.trace_steps]
        return ["--json", str(self.results(name)), *([] if part is None else ["--trace", str(part), *steps])]

    def merge_trace(self, names: Iterable[str], warn: Callable[[str], None]) -> None:
        """Put the parts of processes together; of a run that failed, those that are there.

        `warn` is told where the trace cannot be written.
        """
        if self.trace is not None:
            parts = [part for part in map(self.trace_part, names) if part is not None]
            try:
                with suppress(RunError):  # a run that failed before it began has none
                    merge_parts(parts, self.trace)
            except WriteError as error:
                warn(f"{error}; the run has no trace")

    @property
    def merged_trace(self) -> str | None:
        """The path of the trace of the whole run, once it is there."""
        return str(self.trace.absolute()) if self.trace is not None and self.trace.exists() else None


@contextmanager
def log_folder(logs: Path | None, files: RunFiles) -> Iterator[Path]:
    """The folder of logs: `logs`, else in the run's folder, else a temporary one that is kept when the run fails.

    Raises:
        ConfigError: it cannot be made.
    """
    logs = logs or (files.folder and files.folder / "logs")
    if logs is not None:
        make_folder(logs)
        yield logs
        return
    folder = Path(tempfile.mkdtemp(prefix="taihu-logs-"))
    try:
        yield folder
    except InterruptedRunError:  # whose message names no log
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder)
