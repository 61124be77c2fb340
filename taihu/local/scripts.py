"""A user's script as the workers of a run on this machine, beside the servers that the job wants."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from taihu.errors import ConfigError
from taihu.job import Job, job_to_toml, revised
from taihu.job.environment import without_settings
from taihu.job.machine import share_of_threads
from taihu.local.processes import DaemonFailedError, LocalProcesses
from taihu.process.entry import InterruptedRunError, Interrupts
from taihu.wire.address import free_port

__all__ = ["ScriptRun", "job_of_script"]

_LOOK_S: Final = 0.05
_CONSEQUENCES_S: Final = 2.0
_SCRIPT: Final = "taihu.torch.script"


@dataclass(frozen=True)
class ScriptRun:
    """`taihu run`: servers, and as many processes of a script as the job has workers.

    Worker 0 writes to this process's output; what all others say goes into `logs`, a file for each.

    Attributes:
        job: of the run.
        script: a Python file.
        arguments: for the script.
        logs: a folder, which is there.
        interrupts: the first one ends all processes.
    """

    job: Job
    script: Path
    arguments: Sequence[str]
    logs: Path
    interrupts: Interrupts = field(default_factory=Interrupts)

    def run(self) -> None:
        """Start all processes; returns when they have ended.

        Raises:
            ConfigError: there is no such script, or no PyTorch.
            DaemonFailedError: one ended before its time, all others have been ended.
            InterruptedRunError: it was interrupted.
        """
        if not self.script.is_file():
            raise ConfigError(f"script {self.script}: no such file")
        if find_spec("torch") is None:
            raise ConfigError(
                "PyTorch is not installed for this Python: pip install torch, or taihu with the extra 'torch'"
            )
        with tempfile.TemporaryDirectory(prefix="taihu-") as name, LocalProcesses(self.logs) as processes:
            self._start(processes, Path(name))
            with self.interrupts.offered_to(lambda reason: True):
                self._watch(processes)

    def _watch(self, processes: LocalProcesses) -> None:
        try:
            while not processes.check():
                if self.interrupts.reason:
                    raise InterruptedRunError(f"{self.interrupts.reason}: all processes of the script are ended")
                time.sleep(_LOOK_S)
        except DaemonFailedError:
            # What one failure leads to elsewhere ends within a moment; the cause is told, not the consequence.
            processes.wait(_CONSEQUENCES_S)
            processes.check()
            raise

    def _start(self, processes: LocalProcesses, folder: Path) -> None:
        job_file = folder / "job.toml"
        cluster = self.job.cluster.model_copy(update={"coordinator": None})
        job_file.write_text(job_to_toml(self.job.model_copy(update={"cluster": cluster}), given=True))
        coordinator = ""
        for index in range(self.job.servers):
            own = ["--rank", str(index), str(job_file), "--log-format", "json", "--bind", "127.0.0.1:0"]
            if coordinator:
                processes.start(f"server {index}", "ps_server", [*own, "--coordinator", coordinator])
            else:
                coordinator = processes.start_listening(f"server {index}", "ps_server", own)
        coordinator = coordinator or f"127.0.0.1:{free_port('127.0.0.1')}"
        for rank in range(self.job.cluster.workers):
            environment = self._environment(rank, job_file, coordinator)
            command = [_SCRIPT, str(self.script), *self.arguments]
            processes.run(f"worker {rank}", command, environment, is_shown=rank == 0)

    def _environment(self, rank: int, job_file: Path, coordinator: str) -> Mapping[str, str]:
        environment = without_settings(os.environ)
        environment |= {
            "TAIHU_JOB": str(job_file),
            "TAIHU_RANK": str(rank),
            "TAIHU_CLUSTER__COORDINATOR": coordinator,
        }
        # Libraries take all cores otherwise.
        environment.setdefault("OMP_NUM_THREADS", str(share_of_threads(self.job)))
        return environment


def job_of_script(job: Job, *, has_servers: bool) -> Job:
    """`job` for a script: around a ring, unless servers were asked for, which do what the script says."""
    given = job.exchange.model_fields_set
    kind = job.exchange.kind if "kind" in given else "server" if has_servers else "ring"
    own = {"kind": kind, "returns": "script" if kind == "server" else "gradients"}
    return revised(job, "exchange", **{key: value for key, value in own.items() if key not in given})
