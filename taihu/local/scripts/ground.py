"""The ground on which a script's processes run: one machine, or whatever else starts, watches and ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from taihu.core.job import Job
from taihu.core.job.machine import share_of_threads
from taihu.core.security.security import Security
from taihu.core.security.token import Token
from taihu.core.system.signals import Signals
from taihu.core.wire.base.address import free_port
from taihu.local.own_token import security_of_run
from taihu.local.processes.processes import LocalProcesses

_HERE = "127.0.0.1"


class ScriptProcesses(Protocol):
    """Processes of a run, as `taihu.local.processes.processes.LocalProcesses` has them."""

    @property
    def names(self) -> list[str]:
        """The names of all processes."""

    @property
    def living(self) -> list[str]:
        """The names of those that were not seen to have ended."""

    @property
    def any_has_ended(self) -> bool:
        """Whether one was seen to have ended well."""

    def start(self, name: str, module: str, arguments: Sequence[str]) -> object:
        """Start a daemon."""

    def start_listening(self, name: str, module: str, arguments: Sequence[str]) -> str:
        """Start a daemon and return its address."""

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str], *, is_shown: bool) -> None:
        """Start a module in an environment."""

    def environment(self) -> dict[str, str]:
        """The environment that processes have beside settings."""

    def stand_by(self) -> None:
        """Prepare for processes that are started again."""

    def check(self) -> bool:
        """Whether all have ended; raises DaemonFailedError where one has not ended well."""

    def end_stopped(self) -> None:
        """End processes that a signal has stopped for too long."""

    def log_of(self, name: str) -> Path:
        """The log of a process."""

    def settle(self, name: str) -> None:
        """End a process that has done its part."""

    def dismiss(self, name: str) -> None:
        """End a process, and forget it."""

    def signal(self, name: str, number: Signals) -> None:
        """Send a signal to a process."""

    def wait(self, timeout_s: float) -> None:
        """Return when all have ended or the time is over."""

    def wait_for_words(self, timeout_s: float) -> None:
        """Return when all have said their last words or the time is over."""

    def stop(self, grace_s: float) -> None:
        """End what still runs."""


@dataclass(frozen=True)
class WorkerPlace:
    """The place of a worker.

    Attributes:
        variables: by which it, and `torch.distributed`, find the others.
        threads: with which it computes.
    """

    variables: Mapping[str, str]
    threads: int


class Ground(Protocol):
    """Starts the processes of a run, and knows where they reach each other."""

    def processes(
        self, logs: Path, folder: Path, *, fork: Sequence[str], lost_after_s: float, token: Token | None
    ) -> AbstractContextManager[ScriptProcesses]:
        """The processes of a run, none of which is there yet.

        Args:
            logs: a folder of this machine, in which each has a log.
            folder: of this machine, with what is passed to them and what they leave.
            fork: modules that processes may be forked with; none where each is started anew.
            lost_after_s: the time after which a process that a signal has stopped is ended.
            token: the run's.
        """

    def security(self, job: Job) -> Security:
        """The means of whoever starts the run, with the token of its processes if they have one."""

    def shares(self, folder: Path) -> bool:
        """Whether all processes find this machine's `folder` at the same place."""

    def listening(self, name: str, former: str = "") -> list[str]:
        """The options of a server that say where it listens: at the former address, if one is given."""

    def coordinator(self) -> str:
        """An address at which worker 0 may listen for the others."""

    def places(self, job: Job) -> list[WorkerPlace]:
        """The place of each worker, in the order of their ranks."""


class OneMachine:
    """This machine: processes reach each other at its loopback address."""

    def processes(
        self,
        logs: Path,
        folder: Path,
        *,
        fork: Sequence[str],
        lost_after_s: float,
        token: Token | None,
    ) -> AbstractContextManager[ScriptProcesses]:
        """Processes of this machine."""
        return LocalProcesses(logs, fork=fork, lost_after_s=lost_after_s, token=token)

    def security(self, job: Job) -> Security:
        """A token of the run's own, which does not leave this machine."""
        return security_of_run(job)

    def shares(self, folder: Path) -> bool:
        """True."""
        return True

    def listening(self, name: str, former: str = "") -> list[str]:
        """A free port of this machine alone, or the former one."""
        return ["--bind", former or f"{_HERE}:0"]

    def coordinator(self) -> str:
        """A free port of this machine alone."""
        return f"{_HERE}:{free_port(_HERE)}"

    def places(self, job: Job) -> list[WorkerPlace]:
        """All beside each other, each with an equal share of the cores."""
        size, master, threads = job.world.workers, (_HERE, free_port(_HERE)), share_of_threads(job)
        return [WorkerPlace(words_of_torch(rank, size, master, (rank, size)), threads) for rank in range(size)]


def words_of_torch(rank: int, size: int, master: tuple[str, int], local: tuple[int, int]) -> dict[str, str]:
    """The variables by which `torch.distributed.init_process_group` finds the other processes, as torchrun sets them.

    `taihu.torch` itself goes by this process's TAIHU_RANK, which comes before them.

    Args:
        rank: among all workers.
        size: number of all workers.
        master: host and port of rank 0's store.
        local: rank and size among those of the same host.
    """
    numbers = {"RANK": rank, "LOCAL_RANK": local[0], "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": local[1]}
    words = {name: str(number) for name, number in numbers.items()}
    # Where this run is itself within a torchrun's process, its store is not ours.
    return {
        **words,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
