"""A cluster of Slurm's own daemons: nodes are network namespaces with names, addresses and memory of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from support.daemons import wait_for

from benchmarks.base.network import ShapedNetwork
from taihu.core.job.environment import without_settings

__all__ = ["SlurmNodes"]

# Credentials live for a few seconds: a job that is queued again waits for as long before it starts.
_CONFIG = """
ClusterName=taihu
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=6
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=node[1-{count}] CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
"""

# Nothing is bounded by control groups, which a container may not have; that they are there is not looked at, then.
_GROUPS = "CgroupPlugin=cgroup/v1\n"
_NAMED = 'hostname "$0"; exec "$@"'


class SlurmNodes:
    """`count` nodes `node1`, `node2` ... and a controller on the first; a context manager.

    Needs root, iproute2, slurmctld, slurmd, slurm-client and munge.

    Args:
        count: number of nodes.
        folder: an empty folder for all that Slurm keeps, which other users reach.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._network = ShapedNetwork(count, 1e9)
        self._count = count
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._network.__enter__()
        (self._folder / "slurm.conf").write_text(_CONFIG.format(folder=self._folder, count=self._count))
        (self._folder / "cgroup.conf").write_text(_GROUPS)
        names = "".join(f"{self._network.address(index)} node{index + 1}\n" for index in range(self._count))
        for index in range(self._count):
            own = self._own(index)
            own.mkdir(parents=True)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        self._begin_munge()
        self._begin(0, "slurmctld", "-D", "-i")
        for index in range(self._count):
            self._begin(index, "slurmd", "-D", "-N", f"node{index + 1}")
        wait_for(
            lambda: self.say("sinfo", "-h", "-o", "%T %D").strip() == f"idle {self._count}", "nodes are not idle"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()
        for index in range(self._count):
            shutil.rmtree(self._own(index))
        self._network.__exit__(kind, value, trace)

    def say(
        self, *command: str, folder: Path | None = None, variables: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """The output of a command of Slurm's on the first node."""
        inside = self._network.command(0, *command)
        done = subprocess.run(
            inside,
            env={**self._environment, **variables},
            cwd=folder or self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout or done.stderr

    def state(self, job: str) -> str:
        """The state of a job in a word."""
        words = dict(word.partition("=")[::2] for word in self.say("scontrol", "-o", "show", "job", job).split())
        return words.get("JobState", "")

    @property
    def _environment(self) -> dict[str, str]:
        return {**without_settings(os.environ), "SLURM_CONF": str(self._folder / "slurm.conf")}

    def _own(self, index: int) -> Path:
        return Path("/etc/netns") / self._network.namespace(index)

    def _begin_munge(self) -> None:
        folder = self._folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        places = {
            "key-file": key,
            "socket": folder / "socket",
            "pid-file": folder / "pid",
            "log-file": folder / "log",
        }
        options = [f"--{name}={path}" for name, path in {**places, "seed-file": folder / "seed"}.items()]
        self._start("munged", ["/usr/sbin/munged", "--foreground", "--force", *options])
        wait_for((folder / "socket").exists, "munged does not listen")

    def _begin(self, index: int, program: str, *options: str) -> None:
        named = ("unshare", "--uts", "sh", "-c", _NAMED, f"node{index + 1}", f"/usr/sbin/{program}", *options)
        self._start(f"{program}{index}", self._network.command(index, *named))

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment)
            )
