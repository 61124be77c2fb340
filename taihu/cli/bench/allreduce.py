"""`taihu dev bench allreduce`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from taihu.allreduce.bench import Allreduce, as_rows, elements_of, faster_way, time_allreduce, usual_way
from taihu.allreduce.communicator import Communicator
from taihu.allreduce.rendezvous import meet
from taihu.cli.bench.ranks import RankOptions, check_used, measure_here
from taihu.core.base.errors import ConfigError
from taihu.core.base.words import counted
from taihu.core.job import Job
from taihu.core.job.environment import resolve_job
from taihu.core.job.flags import takes_options
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.process.results import check_writable, write_json
from taihu.core.settings import ClusterSettings, Transport
from taihu.core.wire.base.address import free_port, join_address, split_address
from taihu.core.wire.frames.headers import ValueType
from taihu.worker.memory.arenas import Arenas, allocate_arenas

_OURS = "taihu"
_USED: Final = {
    "exchange": frozenset({"kind", "transport", "timeout_s"}),
    "cluster": frozenset(ClusterSettings.model_fields) - {"compute", "core_groups", "pace", "threads"},
}


@takes_options
def allreduce(
    *,
    sizes: Annotated[str, typer.Option(metavar="MB,...", help="Buffer sizes in 10^6 bytes.")] = "0.1,1,10,60.97,244",
    ranks: Annotated[int, typer.Option(metavar="P", min=1, help="Number of ranks.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count, after two that do not.")] = 10,
    path: Annotated[
        Transport | None,
        typer.Option(
            metavar="auto|same-host|tcp|grpc",
            help="Shared memory if all ranks are on one host, else the faster of two; by default exchange.transport.",
        ),
    ] = None,
    against: Annotated[
        Literal["gloo"] | None, typer.Option(metavar="gloo", help="Time torch.distributed's Gloo in turns with ours.")
    ] = None,
    options: RankOptions,
) -> None:
    """Time allreduce of fp32 buffers between real processes: all on this machine, or one rank per host.

    \b
    Examples:
      taihu dev bench allreduce --ranks 4 --sizes 1,10
      taihu dev bench allreduce --against gloo --json result.json
      taihu dev bench allreduce --ranks 2 --rank 0 --coordinator 10.0.0.1:7070     (on 10.0.0.1)
      taihu dev bench allreduce --ranks 2 --rank 1 --coordinator 10.0.0.1:7070     (on the other host)
    """  # noqa: D301
    interrupts = options.interrupts()
    flags: dict[str, dict[str, object]] = {
        "cluster": {"workers": ranks, "coordinator": options.coordinator},
        "exchange": {"kind": "ring", "transport": path},
    }
    rank, assignments = options.own_rank(), options.assignments or ()
    job = resolve_job(None, assignments, flags, launched=rank is not None)
    check_used(job, "allreduce", _USED)
    megabytes = _parse_sizes(sizes)
    check_writable(options.json_file)
    interrupts.install()
    if rank is None:
        arguments = ["--sizes", sizes, "--ranks", str(ranks), "--rounds", str(rounds)]
        arguments += ["--path", job.exchange.transport]
        arguments += [f"--against={against}"] if against is not None else []
        arguments += [f"--set={item}" for item in assignments]
        rows = measure_here("allreduce", ranks, arguments)["rows"]
    else:
        layout = Layout((LayerSpec("none", (TensorSpec("none", (1,)),)),))
        with meet(job, rank, layout, options.listener(job, rank)) as meeting:
            arenas = allocate_arenas(elements_of(max(megabytes)), shared=job.shares_memory)
            _choose_path(meeting.communicator, job, arenas)

            def allocate(name: str, elements: int) -> NDArray[np.float32]:
                return arenas.gradients[:elements] if name == _OURS else np.empty(elements, dtype=np.float32)

            with _contestants(meeting.communicator, job, against) as contestants:
                measured = time_allreduce(
                    meeting.communicator, megabytes, contestants, rounds=rounds, allocate=allocate
                )
            rows = as_rows(measured, ranks, meeting.communicator.path, _OURS)
            meeting.client.finish()
    if rank is None or rank == 0:
        _tell(rows)
    if options.json_file is not None:
        write_json(options.json_file, {"rows": rows})


def _choose_path(communicator: Communicator, job: Job, arenas: Arenas) -> None:
    """As the job says; where it leaves the choice, shared memory, connections on one host, or the faster of two."""
    communicator.choose_path(job.exchange.transport, arenas.shared)
    if job.exchange.transport == "auto" and communicator.path == "grpc":
        communicator.carry(faster_way(communicator, arenas.gradients))


def _parse_sizes(text: str) -> list[float]:
    try:
        sizes = [float(size) for size in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or any(not 0 < size <= 1e5 for size in sizes):
        raise ConfigError(f"--sizes {text}: expected megabytes separated by commas, for example 0.1,1,10")
    return sizes


@contextmanager
def _contestants(communicator: Communicator, job: Job, against: str | None) -> Iterator[dict[str, Allreduce]]:
    ours: dict[str, Allreduce] = {_OURS: usual_way(communicator)}
    if against is None:
        yield ours
        return
    with _gloo(communicator, job) as other:
        yield {**ours, against: other}


@contextmanager
def _gloo(communicator: Communicator, job: Job) -> Iterator[Allreduce]:
    """torch.distributed's allreduce between the same ranks."""
    try:
        torch: Any = importlib.import_module("torch")
        distributed: Any = importlib.import_module("torch.distributed")
    except ImportError:
        raise ConfigError("--against gloo needs torch: pip install 'taihu[torch]'") from None
    host = split_address(job.cluster.coordinator or "127.0.0.1:0")[0]
    port = np.zeros(1, dtype=np.float64)
    if communicator.rank == 0:
        port[0] = free_port()
    communicator.broadcast(port, ValueType.FP64)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{join_address(host, int(port[0]))}",
        rank=communicator.rank,
        world_size=communicator.size,
    )

    def allreduce(values: NDArray[np.float32]) -> None:
        distributed.all_reduce(torch.from_numpy(values))

    try:
        yield allreduce
    finally:
        distributed.destroy_process_group()


def _tell(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        text = f"{row['megabytes']:>8g} MB, {counted(row['ranks'], 'rank')}, {row['path']}: "
        text += f"{row['seconds']['median'] * 1e3:.2f} ms"
        text += f", bus {row['bus_bandwidth_bytes_per_second'] / 1e6:.0f} MB/s"
        if "gloo_seconds" in row:
            gloo = row["gloo_seconds"]["median"]
            text += f"; gloo {gloo * 1e3:.2f} ms, {gloo / row['seconds']['median']:.2f} times ours"
        typer.echo(text)
