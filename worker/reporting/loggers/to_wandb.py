"""A run in Weights & Biases: where it goes, and whether at once or later, is said by W&B's own variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import wandb

from taihu.core.base.whole_file import write_text
from taihu.core.job.loggers import Kind, LoggedRow, LoggedRun, State
from taihu.core.system.chance import random_hex
from taihu.worker.reporting.loggers.wandb_file import steps_in

_PROJECT: Final = "taihu"
_CODES: Final[Mapping[State, int]] = {"finished": 0, "stopped": 0, "interrupted": 1, "failed": 1}


class WandbRun:
    """A `Logger`; a run beside the one that a script may make itself."""

    def __init__(self, run: LoggedRun) -> None:
        self._told = run
        self._run: Any = None

    def begin(self, handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        """Make the run, or go on with that of an earlier life.

        Of a process that is killed W&B loses what it had not written yet: offline, its file says which steps it has.
        """
        told, kept = self._told, self._told.kept / "id"
        goes_on = kept.exists()
        if not goes_on:
            write_text(kept, random_hex(4))
        run_id = kept.read_text(encoding="utf-8")
        self._run = wandb.init(
            id=run_id,
            resume="allow",
            reinit="create_new",
            name=os.environ.get("WANDB_NAME") or told.name,
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            dir=os.environ.get("WANDB_DIR") or told.folder,
            config={**told.settings, **told.tags},
            settings=wandb.Settings(console="off", x_transaction_log_flush_interval=1.0),
        )
        files = told.kept / "files"
        former = files.read_text(encoding="utf-8").splitlines() if files.exists() else []
        own = Path(self._run.dir).parent / f"run-{run_id}.wandb"
        write_text(files, "\n".join([*former, str(own)]))
        return self._has([Path(line) for line in former], handed) if goes_on else {}

    def _has(self, files: Sequence[Path], handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        if not self._run.offline:
            # What comes for steps that are over is left out by W&B itself.
            return {kind: min(step, self._run.step - 1) for kind, step in handed.items()}
        there = steps_in(files)
        return {**there, "own": min(handed.get("own", 0), there.get("step", 0))}

    def log(self, rows: Sequence[LoggedRow]) -> None:
        """Log the rows; those of one step become one of W&B's."""
        for row in rows:
            # W&B takes nothing for a step that is over, as that of a test that was made again may be.
            self._run.log(dict(row.values), step=max(row.step, self._run.step))

    def end(self, state: State) -> None:
        """Tell W&B how the run has ended, and wait until all of it is sent or written."""
        self._run.finish(exit_code=_CODES[state])
