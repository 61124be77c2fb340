"""`taihu bench exchange`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ps_server.daemon import ServerDaemon, ServerOptions
from taihu.cli.link_rate import floor_seconds, parse_rate
from taihu.cli.ranks import wait_for_all
from taihu.errors import ConfigError
from taihu.job import Job
from taihu.job.environment import rank_from_environment, resolve_job
from taihu.local.processes import LocalProcesses
from taihu.planner.model_shapes import layer_table
from taihu.process.entry import Interrupts
from taihu.process.options import (
    BindOption,
    CoordinatorOption,
    DirectPortOption,
    JsonOption,
    SetOption,
    StopWithStdinOption,
    stop_with_stdin,
)
from taihu.results import check_writable, read_json, write_json
from taihu.wire.log import configure_logs
from taihu.words import counted
from worker.bench.exchange import exchange_rounds

__all__ = ["exchange"]

_PLAN = "exchange.plan=bucket:4MB"


def exchange(
    model: Annotated[str, typer.Option(metavar="M", help="Layer table: resnet50, vgg16, resnet20, ...")] = "resnet50",
    servers: Annotated[int, typer.Option(metavar="S")] = 1,
    workers: Annotated[int, typer.Option(metavar="N")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Rounds before them.")] = 2,
    rate: Annotated[str | None, typer.Option(help="Link rate of every host, for the floor: 100mbit, 1gbit.")] = None,
    role: Annotated[
        str, typer.Option(metavar="all|server|worker", help="Start everything here, or one role.")
    ] = "all",
    rank: Annotated[int | None, typer.Option(help="Rank of the worker, or index of the server.")] = None,
    coordinator: CoordinatorOption = None,
    bind: BindOption = "",
    direct_port: DirectPortOption = 0,
    assignments: SetOption = None,
    json_file: JsonOption = None,
    stop_with_parent: StopWithStdinOption = False,
) -> None:
    """Time dense push and pull rounds with a model's true layer shapes between real processes.

    Layers are merged into groups of 4 MB, as there is no backward pass that smaller ones could overlap with; another
    --set exchange.plan=... wins.

    \b
    Examples:
      taihu bench exchange --model resnet50 --servers 1 --workers 3
      taihu bench exchange --role server --rank 0 --coordinator 10.0.0.1:7070     (on 10.0.0.1)
      taihu bench exchange --role worker --rank 0 --coordinator 10.0.0.1:7070     (on each worker's host)
    """  # noqa: D301
    flags: dict[str, dict[str, object]] = {
        "cluster": {"servers": servers, "workers": workers, "coordinator": coordinator},
        "optimizer": {"momentum": 0.0, "learning_rate": 1e-3},
    }
    job = resolve_job(None, [_PLAN, *(assignments or ())], flags, launched=role != "all")
    check_writable(json_file)
    interrupts = Interrupts()
    interrupts.install()
    if stop_with_parent:
        stop_with_stdin(interrupts)
    if rank is None:
        rank = rank_from_environment(os.environ, role) or 0
    layout = layer_table(model)
    link_rate = None if rate is None else parse_rate(rate)
    if role == "server":
        _serve(job, ServerOptions(index=rank, bind=bind, direct_port=direct_port))
        return
    if role == "worker":
        measured = exchange_rounds(job, rank, layout, rounds=rounds, warmup=warmup)
    elif role == "all":
        measured = _measure_here(job, model, rounds, warmup)
    else:
        raise ConfigError(f"--role {role}: expected all, server or worker")
    floor = None if link_rate is None else floor_seconds(layout.elements * 4, servers, workers, link_rate)
    results = {
        "model": model,
        "servers": servers,
        "workers": workers,
        **measured,
        "floor_seconds": floor,
    }
    _tell(results)
    if json_file is not None:
        write_json(json_file, results)


def _serve(job: Job, options: ServerOptions) -> None:
    configure_logs("auto", role="server", rank=options.index)
    with ServerDaemon(job, options) as daemon:
        typer.echo(f"listening on {daemon.address}")
        daemon.run()


def _measure_here(job: Job, model: str, rounds: int, warmup: int) -> dict[str, Any]:
    """Start all roles as processes on this machine; worker 0's times count."""
    cluster = job.cluster
    common = ["bench", "exchange", "--model", model, "--rounds", str(rounds), "--warmup", str(warmup)]
    common += ["--servers", str(cluster.servers), "--workers", str(cluster.workers)]
    common += [f"--set=exchange.{key}={value}" for key, value in job.exchange.model_dump(exclude_none=True).items()]
    with (
        tempfile.TemporaryDirectory(prefix="taihu-bench-") as name,
        LocalProcesses(Path(name), fork=True) as processes,
    ):
        folder = Path(name)
        server = [*common, "--role", "server", "--bind", "127.0.0.1:0"]
        address = processes.start_listening("server 0", "taihu", [*server, "--rank", "0"])
        common += ["--coordinator", address]
        for index in range(1, cluster.servers):
            arguments = [*common, "--role", "server", "--bind", "127.0.0.1:0", "--rank", str(index)]
            processes.start(f"server {index}", "taihu", arguments)
        for rank in range(cluster.workers):
            json_file = str(folder / f"worker-{rank}.json")
            arguments = [*common, "--role", "worker", "--rank", str(rank), "--json", json_file]
            processes.start(f"worker {rank}", "taihu", arguments)
        members = cluster.servers + cluster.workers
        wait_for_all(processes, f"measuring {warmup} + {rounds} rounds between {members} processes")
        measured = read_json(folder / "worker-0.json")
    keys = ("seconds_per_round", "bytes_sent_per_round", "bytes_received_per_round", "groups", "path")
    return {key: measured[key] for key in keys}


def _tell(results: dict[str, Any]) -> None:
    seconds = results["seconds_per_round"]
    members = f"{counted(results['servers'], 'server')}, {counted(results['workers'], 'worker')}"
    text = f"{results['model']}, {members}, {results['path']}: "
    text += f"{seconds['median']:.4f} s a round (min {seconds['min']:.4f}, max {seconds['max']:.4f})"
    if results["floor_seconds"] is not None:
        floor = results["floor_seconds"]
        text += f", floor {floor:.4f} s, ratio {seconds['median'] / floor:.3f}"
    typer.echo(text)
