"""Benches between ranks: all of them processes of this machine, or this process one of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from taihu.allreduce.rendezvous import listen_for_peers
from taihu.core.base.errors import ConfigError
from taihu.core.base.words import counted
from taihu.core.coordination.listener import Listener, listen_options
from taihu.core.job import Job
from taihu.core.job.environment import rank_from_environment
from taihu.core.job.toml import toml_value
from taihu.core.process.entry import Interrupts
from taihu.core.process.options import (
    AdvertiseOption,
    BindOption,
    CoordinatorOption,
    DirectPortOption,
    JsonOption,
    SetOption,
    SupervisorOption,
    supervised_by,
)
from taihu.core.process.results import read_json
from taihu.core.system.clocks import sleep
from taihu.local.display.display import waiting
from taihu.local.processes.processes import LocalProcesses

_OF_A_PROCESS = {"cluster.coordinator", "cluster.servers", "cluster.workers"}


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Options of a bench between processes: which one this is, how it meets the others, and where results go."""

    rank: Annotated[
        int | None, typer.Option(help="Be this rank alone, a worker's or a server's; others run on other hosts.")
    ] = None
    coordinator: CoordinatorOption = None
    bind: BindOption = ""
    advertise: AdvertiseOption = ""
    direct_port: DirectPortOption = 0
    assignments: SetOption = None
    json_file: JsonOption = None
    supervisor: SupervisorOption = None

    def interrupts(self) -> Interrupts:
        """Those of this process, which ends with the one that has started it."""
        interrupts = Interrupts()
        supervised_by(self.supervisor, interrupts)
        return interrupts

    def own_rank(self, role: str = "worker") -> int | None:
        """The rank that was given, by the option or a launcher; None where this process starts all of them."""
        return self.rank if self.rank is not None else rank_from_environment(os.environ, role)

    def listener(self, job: Job, rank: int) -> Listener:
        """The listener of worker `rank` for the others, and its address on standard output."""
        listen = listen_options(
            job, "worker", rank, bind=self.bind, advertise=self.advertise, direct_port=self.direct_port
        )
        listener = listen_for_peers(job, rank, listen)
        typer.echo(f"listening on {listener.address}")
        return listener


def check_used(job: Job, bench: str, used: Mapping[str, frozenset[str]]) -> None:
    """Refuse what was set of a job that a bench makes no use of: it would measure something else than it says.

    Args:
        job: the bench's.
        bench: its name.
        used: the keys that it uses, by table.

    Raises:
        ConfigError: a key was set that it does not use.
    """
    for table, values in _given(job).items():
        for key in values:
            if key not in used.get(table, frozenset()):
                raise ConfigError(
                    f"{table}.{key}: bench {bench} makes no use of it, for it trains nothing; leave it out"
                )


def assignments_of(job: Job) -> list[str]:
    """The settings that were made in a job, as `--set` takes them, but sizes and addresses, which flags say."""
    return [
        f"--set={table}.{key}={toml_value(value)}"
        for table, values in _given(job).items()
        for key, value in values.items()
        if f"{table}.{key}" not in _OF_A_PROCESS
    ]


def _given(job: Job) -> dict[str, dict[str, Any]]:
    tables = job.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    return {name: values for name, values in tables.items() if isinstance(values, dict)}


def wait_for_all(processes: LocalProcesses, what: str) -> None:
    """Return when all of them have ended well, and say `what` is done meanwhile.

    Raises:
        DaemonFailedError: one has not.
    """
    with waiting(what):
        while not processes.check():
            sleep(0.1)


def measure_here(bench: str, ranks: int, arguments: Sequence[str], *, trace: Path | None = None) -> dict[str, Any]:
    """Run `taihu dev bench BENCH` with `arguments` as `ranks` processes on this machine; returns rank 0's results."""
    common = ["dev", "bench", bench, *arguments, "--bind", "127.0.0.1:0"]
    with (
        tempfile.TemporaryDirectory(prefix="taihu-bench-") as name,
        LocalProcesses(Path(name), fork=True) as processes,
    ):
        result = Path(name) / "rank-0.json"
        own = ["--rank", "0", "--json", str(result)]
        if trace is not None:
            own += ["--trace", str(trace.absolute())]
        address = processes.start_listening("rank 0", "taihu", [*common, *own])
        for rank in range(1, ranks):
            processes.start(f"rank {rank}", "taihu", [*common, "--rank", str(rank), "--coordinator", address])
        wait_for_all(processes, f"measuring between {counted(ranks, 'rank')}")
        results: dict[str, Any] = read_json(result)
    return results
