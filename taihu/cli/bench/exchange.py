"""`taihu dev bench exchange`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from taihu.cli.bench.ranks import RankOptions, assignments_of, check_used, wait_for_all
from taihu.cli.planning.link_rate import floor_seconds, parse_rate
from taihu.core.base.errors import ConfigError
from taihu.core.base.words import counted
from taihu.core.coordination.plans.planning import is_computed
from taihu.core.job import Job
from taihu.core.job.environment import resolve_job
from taihu.core.job.flags import takes_options
from taihu.core.planner.model_shapes import layer_table
from taihu.core.process.results import check_writable, read_json, write_json
from taihu.core.settings import (
    ClusterSettings,
    CompressionSettings,
    ExchangeSettings,
    OptimizerSettings,
    SecuritySettings,
)
from taihu.core.traits.methods import METHODS
from taihu.core.wire.base.log import configure_logs
from taihu.local.processes.processes import LocalProcesses
from taihu.ps_server.daemon import ServerDaemon, ServerOptions
from taihu.worker.bench.exchange import Rounds, exchange_rounds

if TYPE_CHECKING:
    from taihu.core.wire.links.pipe import Carrier

_RATE: Final = ("optimizer.momentum=0.0", "optimizer.learning_rate=1e-3")
# Compute, data and schedules have no part in it: nothing is trained.
_USED: Final = {
    "exchange": frozenset(ExchangeSettings.model_fields)
    - {"fc", "fc_scheme", "fc_update", "calibration_steps", "replan_every"},
    "compression": frozenset(CompressionSettings.model_fields),
    "optimizer": frozenset(OptimizerSettings.model_fields)
    - {"schedule", "milestones", "milestone_epochs", "gamma", "decay_steps", "final_learning_rate"}
    - {"warmup_steps", "warmup_epochs"},
    "train": frozenset({"seed", "precision", "loss_scale", "loss_scale_growth_steps"}),
    "cluster": frozenset(ClusterSettings.model_fields) - {"compute", "core_groups", "pace", "threads"},
    "security": frozenset(SecuritySettings.model_fields),
}


@takes_options
def exchange(
    *,
    model: Annotated[str, typer.Option(metavar="M", help="Layer table: resnet50, vgg16, resnet20, ...")] = "resnet50",
    servers: Annotated[int, typer.Option(metavar="S")] = 1,
    workers: Annotated[int, typer.Option(metavar="N")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Rounds before them.")] = 2,
    against: Annotated[
        str, typer.Option(metavar="grpc|tcp|grpc,tcp", help="Time these carriers in turns with what the job takes.")
    ] = "",
    blobs: Annotated[bool, typer.Option("--blobs", help="A message for each tensor, none merged.")] = False,
    rate: Annotated[str | None, typer.Option(help="Link rate of every host, for the floor: 100mbit, 1gbit.")] = None,
    role: Annotated[
        str, typer.Option(metavar="all|server|worker", help="Start everything here, or one role.")
    ] = "all",
    options: RankOptions,
) -> None:
    """Time the exchange of steps with a model's true layer shapes between real processes; nothing is computed.

    It is the exchange that --set asks for: compressed, in 16 bits, of any stage of ZeRO, through servers or around a
    ring; a setting that has no part in it is refused. Layers are merged into groups of 4 MB, as there is no backward
    pass that smaller ones could overlap with; another --set exchange.plan=... wins. With --blobs each tensor is a
    layer of its own, and none are merged, as in Caffe: the difference is what merging gains. Gradients are drawn,
    double exponential in every layer; where they are compressed, anew in every round. What is held back of them
    settles within some 1 / density rounds, which --warmup can be.

    \b
    Examples:
      taihu dev bench exchange --model resnet50 --servers 1 --workers 3
      taihu dev bench exchange --set compression.method=dlgs --set compression.density=0.01
      taihu dev bench exchange --workers 4 --set exchange.kind=ring --set exchange.transport=tcp --against grpc
      taihu dev bench exchange --set security.ca=ca.pem     (and certificate and key likewise: docs/security.md)
      taihu dev bench exchange --role server --rank 0 --coordinator 10.0.0.1:7070     (on 10.0.0.1)
      taihu dev bench exchange --role worker --rank 0 --coordinator 10.0.0.1:7070     (on each worker's host)
    """  # noqa: D301
    interrupts = options.interrupts()
    cluster: dict[str, object] = {"servers": servers, "workers": workers, "coordinator": options.coordinator}
    job = bench_job(
        options.assignments or (), cluster, launched=role != "all", plan="per-layer" if blobs else "bucket:4MB"
    )
    wanted = Rounds(rounds, warmup, _carriers(against))
    if wanted.against and role == "all" and job.shares_memory:
        raise ConfigError(f"--against {against}: values lie in shared memory here; add --set exchange.transport=tcp")
    check_writable(options.json_file)
    interrupts.install()
    rank = options.own_rank(role) or 0
    layout = layer_table(model).by_tensor() if blobs else layer_table(model)
    link_rate = None if rate is None else parse_rate(rate)
    if role == "server":
        _serve(job, ServerOptions(index=rank, bind=options.bind, direct_port=options.direct_port))
        return
    if role == "worker":
        listener = options.listener(job, rank) if job.workers_meet else None
        measured = exchange_rounds(job, rank, layout, wanted, listener)
    elif role == "all":
        measured = _measure_here(job, ["--model", model, *(["--blobs"] if blobs else [])], wanted)
    else:
        raise ConfigError(f"--role {role}: expected all, server or worker")
    results = {
        "model": model,
        "servers": job.servers,
        "workers": workers,
        **measured,
        "floor_seconds": _floor(job, measured, link_rate),
    }
    _tell(results)
    if options.json_file is not None:
        write_json(options.json_file, results)


def bench_job(
    assignments: Iterable[str], cluster: dict[str, object], *, launched: bool = False, plan: str = "bucket:4MB"
) -> Job:
    """The job whose exchange is measured, with plain SGD and groups by `plan` if nothing else is said.

    Raises:
        ConfigError: something is set that has no part in the exchange, or that cannot be.
    """
    given = [*_RATE, *assignments]
    job = resolve_job(None, given, {"cluster": cluster}, launched=launched)
    if "plan" not in job.exchange.model_fields_set and not job.compression.method.is_of_whole_model:
        job = resolve_job(None, [f"exchange.plan={plan}", *given], {"cluster": cluster}, launched=launched)
    check_used(job, "exchange", _USED)
    if is_computed(job.exchange.plan) and not job.compression.method.is_of_whole_model:
        raise ConfigError(
            f"exchange.plan {job.exchange.plan!r}: there is no backward pass to plan by; name per-layer, single or "
            "bucket:SIZE"
        )
    return job


def _carriers(text: str) -> tuple[Carrier, ...]:
    known: dict[str, Carrier] = {"grpc": "grpc", "tcp": "tcp"}
    names = text.split(",") if text else []
    if any(name not in known for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"--against {text}: expected grpc, tcp, or grpc,tcp")
    return tuple(known[name] for name in names)


def _serve(job: Job, options: ServerOptions) -> None:
    configure_logs("auto", role="server", rank=options.index)
    with ServerDaemon(job, options) as daemon:
        typer.echo(f"listening on {daemon.address}")
        daemon.run()


def _measure_here(job: Job, of_model: list[str], rounds: Rounds) -> dict[str, Any]:
    """Start all roles as processes on this machine; worker 0's times count."""
    common = ["dev", "bench", "exchange", *of_model, "--rounds", str(rounds.counted), "--warmup", str(rounds.warmup)]
    common += ["--servers", str(job.cluster.servers), "--workers", str(job.world.workers)]
    common += [f"--against={','.join(rounds.against)}", *assignments_of(job)]
    bind = ["--bind", "127.0.0.1:0"]
    with (
        tempfile.TemporaryDirectory(prefix="taihu-bench-") as name,
        LocalProcesses(Path(name), fork=True) as processes,
    ):
        result = Path(name) / "worker-0.json"
        roles = [(f"server {index}", [*bind]) for index in range(job.servers)]
        roles += [(f"worker {rank}", bind if job.workers_meet else []) for rank in range(job.world.workers)]
        address = ""
        for role, own in roles:
            kind, rank = role.split()
            arguments = [*common, "--role", kind, "--rank", rank, *own]
            arguments += ["--json", str(result)] if role == "worker 0" else []
            if address:
                processes.start(role, "taihu", [*arguments, "--coordinator", address])
            else:
                address = processes.start_listening(role, "taihu", arguments)
        wait_for_all(processes, f"measuring rounds between {len(roles)} processes")
        measured = read_json(result)
    return {key: value for key, value in measured.items() if key not in ("model", "servers", "workers")}


def _floor(job: Job, measured: dict[str, Any], link_rate: float | None) -> float | None:
    """The time in which the busiest link carries what a worker sends or receives."""
    if link_rate is None:
        return None
    busiest = max(measured["bytes_sent_per_round"], measured["bytes_received_per_round"])
    # Around a ring every link carries one worker's.
    return floor_seconds(busiest, job.servers or 1, job.world.workers if job.servers else 1, link_rate)


def _tell(results: dict[str, Any]) -> None:
    seconds = results["seconds_per_round"]
    servers = counted(results["servers"], "server") if results["servers"] else "a ring"
    words = [results["model"], servers, counted(results["workers"], "worker"), results["path"]]
    if METHODS[results["compression"]].selects:
        words.append(f"{results['compression']} {results['density']:g}, {results['downlink']} downlink")
    elif results["precision"] != "fp32" or results["zero"] > 1:
        words.append(f"{results['precision']}, zero {results['zero']}")
    text = f"{', '.join(words)}: "
    text += f"{seconds['median']:.4f} s a round (min {seconds['min']:.4f}, max {seconds['max']:.4f})"
    if results["floor_seconds"] is not None:
        floor = results["floor_seconds"]
        text += f", floor {floor:.4f} s, ratio {seconds['median'] / floor:.3f}"
    typer.echo(text)
    for name in ("grpc", "tcp"):
        if (other := results.get(f"{name}_seconds")) is not None:
            ratio = other["median"] / seconds["median"]
            typer.echo(f"by {name}: {other['median']:.4f} s a round, {ratio:.2f} times as long")
