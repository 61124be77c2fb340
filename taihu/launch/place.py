"""The place of a process among those that mpirun, srun or torchrun started, and the role that this gives it.

Everything here is decided from the environment, which is given: nothing is read, connected to or waited for.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import counted
from taihu.core.job import Job, revised
from taihu.core.traits.exchanges import RING, SERVER
from taihu.core.wire.base.address import split_address

_MASTER: Final = ("MASTER_ADDR", "MASTER_PORT")
# Outside of what systems give to outgoing connections, and of what is usually taken.
FIRST_PORT, PORTS = 20000, 10000
_MOST_NODES: Final = 100_000


@dataclass(frozen=True)
class Launch:
    """A process in the words of its launcher.

    Args:
        launcher: its name, for messages.
        rank: of this process, from 0.
        size: number of processes.
        local_size: how many of them are on this machine, None where the launcher does not say.
        host: where rank 0 is, None where the launcher does not say.
        port: for the coordinator, the same for all ranks of this launch; None where nothing tells launches apart.
    """

    launcher: str
    rank: int
    size: int
    local_size: int | None = None
    host: str | None = None
    port: int | None = None

    @property
    def one_host(self) -> bool:
        """Whether all processes are on this machine."""
        return self.local_size == self.size


@dataclass(frozen=True)
class NodeRole:
    """A server's index or a worker's rank."""

    name: Literal["server", "worker"]
    place: int

    def __str__(self) -> str:
        return f"{self.name} {self.place}"


def find_launch(environment: Mapping[str, str]) -> Launch:
    """The launch that `environment` tells of; the innermost where launchers are nested.

    Raises:
        ConfigError: no launcher's variables are there, or they make no sense.
    """
    launch = maybe_launch(environment)
    if launch is None and "RANK" in environment:
        raise _half_told("RANK", "WORLD_SIZE")
    if launch is None:
        raise ConfigError(
            "no launcher: mpirun, srun or torchrun start taihu node, for example mpirun -n 5 taihu node job.toml; or "
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    return launch


def maybe_launch(environment: Mapping[str, str]) -> Launch | None:
    """The launch that `environment` tells of, see `find_launch`; None where it tells of none.

    Raises:
        ConfigError: a launcher's variables make no sense.
    """
    for find in (_torchrun, _open_mpi, _slurm, _other_mpi, _plain):
        launch = find(environment)
        if launch is not None:
            if not 0 <= launch.rank < launch.size:
                ranks = f"; ranks go from 0 to {launch.size - 1}" if launch.size > 0 else ""
                told = f"rank {launch.rank} of {launch.size} processes makes no sense"
                raise ConfigError(f"{launch.launcher}: {told}{ranks}")
            return launch
    return None


def fit_to_size(job: Job, launch: Launch) -> Job:
    """`job` with as many servers and workers as there are processes: the number not set follows from the other.

    Raises:
        ConfigError: the numbers that are set need another number of processes.
    """
    given = job.cluster.model_fields_set
    servers, workers = job.servers, job.world.workers
    if "workers" not in given:
        workers = launch.size - servers
    elif job.servers and "servers" not in given:
        servers = launch.size - workers
    remedy = None
    if workers < 1:
        remedy = f"{counted(servers, 'server')} and needs a worker: start {servers + 1} processes or more"
    elif job.servers and servers < 1:
        remedy = f"{counted(workers, 'worker')} and needs a server: start {workers + 1} processes or more"
    elif servers + workers != launch.size:
        members = (
            f"{counted(servers, 'server')} and {counted(workers, 'worker')}"
            if servers
            else f"a ring of {counted(workers, 'worker')}"
        )
        remedy = f"{members}: start {servers + workers} processes, or let cluster.workers follow from their number"
    if remedy is not None:
        raise ConfigError(f"{launch.launcher} started {launch.size} processes, but the job has {remedy}")
    sizes = {"workers": workers, "servers": servers} if job.servers else {"workers": workers}
    return job.model_copy(update={"cluster": job.cluster.model_copy(update=sizes)})


def script_job(job: Job, *, has_servers: bool) -> Job:
    """`job` for a PyTorch script: around a ring, unless there are servers, which do what the script says."""
    given = job.exchange.model_fields_set
    kind = job.exchange.kind if "kind" in given else SERVER if has_servers else RING
    own = {"kind": kind, "returns": "script" if kind.has_servers else "gradients"}
    return revised(job, "exchange", **{key: value for key, value in own.items() if key not in given})


def script_job_of(job: Job, launch: Launch) -> Job:
    """`job` for a PyTorch script whose processes are all workers; servers are started apart from them.

    Raises:
        ConfigError: the number of workers that is set is not that of the processes.
    """
    if "workers" in job.cluster.model_fields_set and job.world.workers != launch.size:
        raise ConfigError(
            f"{launch.launcher} started {launch.size:,} processes of the script, but the job "
            f"has {counted(job.world.workers, 'worker')}: start as many, or leave cluster.workers out"
        )
    return revised(job, "cluster", workers=launch.size)


def role_of(rank: int, servers: int) -> NodeRole:
    """Servers are the first ranks, workers the others."""
    return NodeRole("server", rank) if rank < servers else NodeRole("worker", rank - servers)


def coordinator_at(given: str | None, launch: Launch) -> tuple[str | None, int | None]:
    """Host and port of the coordinator, as far as they are known without asking: `given` before the launcher's.

    Args:
        given: `HOST` or `HOST:PORT`.
        launch: of this process.
    """
    if given is None:
        return ("127.0.0.1" if launch.one_host else launch.host), launch.port
    if re.fullmatch(r"[^:\[\]]+|\[[^\[\]]*\]", given):
        return given.strip("[]"), launch.port
    return split_address(given)


def derived_port(words: str) -> int:
    """A port between 20000 and 29999 that follows from `words`."""
    return FIRST_PORT + zlib.crc32(words.encode()) % PORTS


def choose_address(interfaces: Sequence[Sequence[str]]) -> str | None:
    """The address of rank 0 that the others should use.

    That is the one in whose network most other ranks are. Addresses that other hosts have as well, those of bridges
    for containers, lead nowhere.

    Args:
        interfaces: of every rank, as address/prefix.
    """
    own = [ipaddress.ip_interface(text) for text in interfaces[0]]
    others = [set(map(ipaddress.ip_interface, texts)) for texts in interfaces[1:] if set(texts) != set(interfaces[0])]
    usable = [one for one in own if not any(one in other for other in others)] or own
    near = [sum(any(other.ip in one.network for other in host) for host in others) for one in usable]
    return str(usable[near.index(max(near))].ip) if usable else None


def expand_nodelist(text: str) -> list[str]:
    """The hosts of a list of Slurm's, such as `n[001-003,7],login`.

    Raises:
        ConfigError: it is none, or has more than 100,000 hosts.
    """
    hosts = [host for part in _parts(text) for host in _expand(part, text)]
    if not hosts:
        raise _no_nodelist(text)
    return hosts


def _torchrun(environment: Mapping[str, str]) -> Launch | None:
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    rank, size = _numbers(environment, "RANK", "WORLD_SIZE")
    # The port of the variables is the launcher's own. Each host counts its own restarts: they are no part of this.
    names = ("TORCHELASTIC_RUN_ID", *_MASTER, "WORLD_SIZE")
    words = " ".join(environment.get(name, "") for name in names)
    return Launch(
        "torchrun",
        rank,
        size,
        _local(environment, "LOCAL_WORLD_SIZE"),
        environment.get("MASTER_ADDR"),
        derived_port(words),
    )


def _open_mpi(environment: Mapping[str, str]) -> Launch | None:
    if "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    rank, size = _numbers(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local_size = _local(environment, "OMPI_COMM_WORLD_LOCAL_SIZE")
    return Launch("mpirun", rank, size, local_size, *_master(environment, environment.get("PMIX_NAMESPACE")))


def _slurm(environment: Mapping[str, str]) -> Launch | None:
    if "SLURM_PROCID" not in environment:
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    rank, size = _numbers(environment, "SLURM_PROCID", size_name)
    nodes = next(
        (environment[name] for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if name in environment), ""
    )
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    host, port = _master(environment, f"{job}.{step}")
    hosts = expand_nodelist(nodes) if nodes else []
    local_size = size if len(hosts) == 1 else None
    return Launch("srun", rank, size, local_size, host or next(iter(hosts), None), port)


def _other_mpi(environment: Mapping[str, str]) -> Launch | None:
    if "PMI_RANK" not in environment:
        return None
    rank, size = _numbers(environment, "PMI_RANK", "PMI_SIZE")
    return Launch("mpiexec", rank, size, _local(environment, "MPI_LOCALNRANKS"), *_master(environment, None))


def _plain(environment: Mapping[str, str]) -> Launch | None:
    if "WORLD_SIZE" not in environment or ("RANK" not in environment and environment["WORLD_SIZE"] == "1"):
        return None
    if "RANK" not in environment:
        raise _half_told("WORLD_SIZE", "RANK")
    return Launch("RANK", *_numbers(environment, "RANK", "WORLD_SIZE"), None, *_master(environment, None))


def _master(environment: Mapping[str, str], words: str | None) -> tuple[str | None, int | None]:
    """The user's MASTER_ADDR and MASTER_PORT, or a port by `words`."""
    host, port = (environment.get(name) for name in _MASTER)
    if port is not None:
        return host, _number("MASTER_PORT", port)
    return host, None if words is None else derived_port(words)


def _local(environment: Mapping[str, str], name: str) -> int | None:
    return _number(name, environment[name]) if name in environment else None


def _numbers(environment: Mapping[str, str], *names: str) -> tuple[int, int]:
    missing = [name for name in names if name not in environment]
    if missing:
        raise _half_told(names[0], missing[0])
    first, second = (_number(name, environment[name]) for name in names)
    return first, second


def _half_told(there: str, missing: str) -> ConfigError:
    return ConfigError(f"environment variable {missing} is missing, {there} is there; the launcher sets both")


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"environment variable {name}: expected a number, got {text!r}")
    return int(text)


def _parts(text: str) -> list[str]:
    """`text` at the commas outside of brackets."""
    return re.findall(r"(?:\[[^\[\]]*\]|[^,\[\]])+", text) if re.fullmatch(r"(?:\[[^\[\]]*\]|[^\[\]])*", text) else []


def _expand(part: str, text: str) -> list[str]:
    """The hosts of one part; it may have several brackets."""
    pieces = re.split(r"\[([^\[\]]*)\]", part.strip())
    choices = [_range(piece, text) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_NODES:
        raise _no_nodelist(text)
    return ["".join(words) for words in product(*choices)]


def _range(piece: str, text: str) -> list[str]:
    """`001-003,7` as 001, 002, 003, 7."""
    numbers: list[str] = []
    for span in piece.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", span)
        if match is None:
            raise _no_nodelist(text)
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + _MOST_NODES:
            raise _no_nodelist(text)
        numbers += [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return numbers


def _no_nodelist(text: str) -> ConfigError:
    return ConfigError(f"list of nodes {text[:80]!r}: expected names such as n[001-003,7]; give --coordinator HOST")
