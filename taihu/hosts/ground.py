"""Several hosts as the ground of a run: reached by ssh, looked at, and given the members of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from taihu.core import __version__
from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.job.security import security_of
from taihu.core.job.variables import variable_of
from taihu.core.security.security import Security
from taihu.core.security.token import Token
from taihu.core.system.chance import random_hex
from taihu.core.system.clocks import monotonic
from taihu.core.wire.base.address import split_address
from taihu.hosts.client import CONNECT_S
from taihu.hosts.connection import Connection
from taihu.hosts.likeness import HostFacts, check_alike
from taihu.hosts.looking import digest_of
from taihu.hosts.placement import Placement
from taihu.hosts.processes import HostedProcesses
from taihu.launch.meeting import Meeting
from taihu.launch.place import choose_address
from taihu.local.own_token import security_of_run
from taihu.local.scripts.ground import ScriptProcesses, WorkerPlace, words_of_torch

# ssh has its time to log in, and Python its own to start from a shared file system.
_BEGIN_S: Final = CONNECT_S + 20.0
_PART_S: Final = 1.0


@dataclass(frozen=True)
class Launching:
    """The way in which hosts are reached, and the things that they are to have.

    Attributes:
        client: ssh and the user's options.
        python: the Python of all hosts.
        folder: the working folder of all processes.
        script: the path of the script, absolute or from the folder.
        carried: variables that go with the processes.
        port: the first of those at which processes of a host listen; None for free ones.
        address: of the first host, for the others; None for the one that they have in common.
    """

    client: Sequence[str]
    python: str
    folder: Path
    script: Path
    carried: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    address: str | None = None

    def begin(self, host: str) -> Connection:
        """Begin to reach a host."""
        return Connection(host, self.client, self.python, {"folder": str(self.folder), "script": str(self.script)})


class Hosts:
    """Hosts that were reached and are alike; the ground of a script's run, see `taihu.local.scripts.ground.Ground`.

    Args:
        launching: the way in which they are reached.
        placement: who is where.
        connections: to them; another one takes the place of one that has ended.
        facts: of each.
    """

    def __init__(
        self, launching: Launching, placement: Placement, connections: list[Connection], facts: Sequence[HostFacts]
    ) -> None:
        self._launching = launching
        self._placement = placement
        self._connections = connections
        self._facts = facts
        self._here: dict[Path, bool] = {}
        self.run_folder: Path | None = None
        """The folder in which worker 0 writes of the run, on its host; None for none."""

    @property
    def address(self) -> str:
        """The address of the first host for all others."""
        if self._launching.address is not None:
            return self._launching.address
        if len(self._facts) == 1:
            return "127.0.0.1"
        address = choose_address([facts.interfaces for facts in self._facts])
        if address is None:
            raise ConfigError(
                f"{self._connections[0].host}: has no address that the other hosts may know; give it by --address"
            )
        return address

    def security(self, job: Job) -> Security:
        """The job's own means; a token is for one host alone, or for what travels under TLS."""
        return security_of_run(job) if len(self._facts) == 1 else security_of(job, "operator", 0)

    def shares(self, folder: Path) -> bool:
        """Whether all hosts find `folder` of this machine at the same place: a file of a moment is seen by all."""
        if folder not in self._here:
            probe = folder.absolute() / f".taihu-{random_hex(8)}"
            try:
                probe.touch()
                self._here[folder] = all(each.ask("is_there", path=str(probe)) for each in self._connections)
            except OSError:
                self._here[folder] = False
            finally:
                probe.unlink(missing_ok=True)
        return self._here[folder]

    def processes(
        self, logs: Path, folder: Path, *, fork: Sequence[str], lost_after_s: float, token: Token | None
    ) -> AbstractContextManager[ScriptProcesses]:
        """The processes of a run, none of which is there yet. Where several workers are on a host they are forked."""

        def opened(index: int) -> Connection:
            connection = self._connection(index)
            connection.order(
                "open",
                fork=list(fork) if self._placement.hosts[index].workers > 1 else [],
                variables=dict(self._launching.carried),
                token=None if token is None else token.reveal(),
                lost_after_s=lost_after_s,
            )
            return connection

        carried, run_folder = self._launching.carried, self.run_folder
        return HostedProcesses(opened, self._placement, logs, folder, run_folder=run_folder, carried=carried)

    def listening(self, name: str, former: str = "") -> list[str]:
        """The options of a server: all interfaces of its host, and for the first one the address that others use."""
        port = split_address(former)[1] if former else self._port_of(name)
        bind = self._meeting(port).bind(first=True)
        return ["--bind", bind, *(["--advertise", self.address] if name == "server 0" else [])]

    def coordinator(self) -> str:
        """An address of the first host."""
        return self._meeting(self._port_of("worker 0") or self._free_port()).address

    def places(self, job: Job) -> list[WorkerPlace]:
        """The places of the workers, each with an equal share of the cores of its host."""
        first = len(self._placement.members(0))
        port = self._free_port() if self._launching.port is None else self._launching.port + first
        master, places = (self.address, port), []
        for rank in range(job.world.workers):
            name, local = f"worker {rank}", self._placement.local(rank)
            cores = self._facts[self._placement.host_of(name)].cores
            variables = words_of_torch(rank, job.world.workers, master, local)
            # The one that hosts the coordinator listens at its port.
            if rank or job.servers:
                bind = self._meeting(self._port_of(name)).bind(first=True)
                variables[variable_of("BIND")] = bind
            places.append(WorkerPlace(variables, job.cluster.threads or max(1, cores // local[1])))
        return places

    def _connection(self, index: int) -> Connection:
        """The connection to a host: the first one, or another one where that has ended."""
        if self._connections[index].is_over:
            connection = self._launching.begin(self._connections[index].host)
            self._connections[index] = connection
            connection.facts(monotonic() + _BEGIN_S)
        return self._connections[index]

    def _meeting(self, port: int) -> Meeting:
        return Meeting(self.address, port)

    def _port_of(self, name: str) -> int:
        """The port at which a member listens; 0 for a free one."""
        if self._launching.port is None:
            return 0
        return self._launching.port + self._placement.members(self._placement.host_of(name)).index(name)

    def _free_port(self) -> int:
        return int(self._connections[0].ask("port"))


@contextmanager
def reached(launching: Launching, placement: Placement) -> Iterator[Hosts]:
    """The hosts of a placement for the block, when ssh has reached all of them at once.

    Raises:
        ConfigError: one is not reached, or lacks something; names it, and the remedy.
    """
    until_s = monotonic() + _BEGIN_S
    connections: list[Connection] = []
    try:
        connections += (launching.begin(host.name) for host in placement.hosts)
        facts = [connection.facts(until_s) for connection in connections]
        named = [(connection.host, each) for connection, each in zip(connections, facts, strict=True)]
        script = (str(launching.script), digest_of(launching.script))
        check_alike(named, __version__, str(launching.folder), script, launching.python)
        yield Hosts(launching, placement, connections, facts)
    finally:
        for connection in connections:
            connection.close(_PART_S)
