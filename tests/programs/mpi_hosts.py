"""Open MPI on hosts of its own: network namespaces, each with a name and an address, entered in the place of ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.base.network import ShapedNetwork
from taihu.core.job.environment import without_settings

__all__ = ["MpiHosts"]

# Called as ssh would be: HOST COMMAND...; the last number of the address is that of the host, from 1.
_AGENT = """#!/bin/sh
number=$((${1##*.} - 1)); shift
exec ip netns exec PREFIX$number unshare --uts sh -c "hostname host$number; $*"
"""
_NAMED = 'hostname "$0"; exec "$@"'


class MpiHosts:
    """`count` hosts with `mpirun`; a context manager. Needs root, iproute2 and openmpi-bin.

    Args:
        count: number of hosts.
        folder: an empty folder for the script that reaches them.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._network = ShapedNetwork(count, 1e9)
        self._agent = folder / "agent"

    def __enter__(self) -> Self:
        self._network.__enter__()
        self._agent.write_text(_AGENT.replace("PREFIX", self._network.namespace(0).removesuffix("0")))
        self._agent.chmod(0o755)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._network.__exit__(kind, value, trace)

    def address(self, host: int) -> str:
        """The host's IPv4 address."""
        return self._network.address(host)

    def hosts(self, slots: Sequence[int], first: int = 0) -> str:
        """The argument of `mpirun -H`: so many slots on the first host, on the next one, and so on."""
        return ",".join(f"{self.address(first + place)}:{count}" for place, count in enumerate(slots))

    def start(self, host: int, folder: Path, *arguments: str, path: str | None = None) -> subprocess.Popen[str]:
        """`mpirun` with these arguments in `folder`, called on `host`; `path` is where `taihu` is found."""
        inside = ("unshare", "--uts", "sh", "-c", _NAMED, f"host{host}", "mpirun", *arguments)
        return subprocess.Popen(
            self._network.command(host, *inside),
            cwd=folder,
            env=self._environment(path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(
        self, host: int, folder: Path, *arguments: str, path: str | None = None, timeout_s: float = 180
    ) -> tuple[int, str]:
        """Exit code and output of `mpirun`."""
        with self.start(host, folder, *arguments, path=path) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            finally:
                process.kill()
        return process.returncode, output

    def _environment(self, path: str | None) -> dict[str, str]:
        """For Open MPI 4 and 5."""
        return {
            **without_settings(os.environ),
            "PATH": path or f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm_rsh_agent": str(self._agent),
            "PRTE_MCA_plm_ssh_agent": str(self._agent),
        }
