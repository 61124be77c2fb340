"""`taihu dev bench fc`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from threadpoolctl import threadpool_limits

from taihu.allreduce.rendezvous import meet
from taihu.cli.bench.ranks import RankOptions, measure_here
from taihu.core.base.errors import ConfigError
from taihu.core.base.words import counted
from taihu.core.job.environment import resolve_job
from taihu.core.job.flags import takes_options
from taihu.core.job.machine import share_of_threads
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.fc_mode import FcLayer
from taihu.core.process.results import check_writable, write_json
from taihu.core.trace import Tracer, merge_parts
from taihu.worker.fc.bench import time_exchanges, time_schemes
from taihu.worker.fc.passes import Scheme

_LAYER = re.compile(r"^([1-9][0-9]*)x([1-9][0-9]*)$")


@takes_options
def fc(
    *,
    layers: Annotated[
        str, typer.Option(metavar="KxN,...", help="Inputs and outputs of layers; the default is VGG-16's three.")
    ] = "25088x4096,4096x4096,4096x1000",
    batches: Annotated[str, typer.Option(metavar="M,...", help="Examples of each rank.")] = "1,2,4,8,16,32,64,128",
    ranks: Annotated[int, typer.Option(metavar="P", min=2, help="Number of ranks.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count, after one that does not.")] = 5,
    compute: Annotated[
        bool, typer.Option("--compute", help="Compute too, and compare the schemes gather, turns and slices.")
    ] = False,
    gflops: Annotated[
        float | None,
        typer.Option(
            metavar="G", help="With --compute: products take as long as at this speed, and are not computed."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --compute: write rank 0's transfers for Perfetto.")
    ] = None,
    options: RankOptions,
) -> None:
    """Time the communication of fully connected layers: gradients around a ring against activations of shards.

    \b
    Examples:
      taihu dev bench fc
      taihu dev bench fc --layers 4096x1000 --batches 1,128 --ranks 4 --json fc.json
      taihu dev bench fc --compute --layers 4096x4096 --batches 64 --trace fc-trace.json
      taihu dev bench fc --compute --layers 4096x4096 --batches 64 --ranks 8 --gflops 5
      taihu dev bench fc --ranks 2 --rank 0 --coordinator 10.0.0.1:7070     (on 10.0.0.1)
    """  # noqa: D301
    interrupts = options.interrupts()
    flags: dict[str, dict[str, object]] = {
        "cluster": {"workers": ranks, "coordinator": options.coordinator},
        "exchange": {"kind": "ring", "fc": "shard", "transport": "tcp"},
    }
    rank, assignments = options.own_rank(), options.assignments or ()
    job = resolve_job(None, assignments, flags, launched=rank is not None)
    shapes, sizes = _parse_layers(layers), _parse_batches(batches)
    _check_speed(gflops, compute=compute)
    check_writable(options.json_file, trace)
    interrupts.install()
    if rank is None:
        arguments = ["--layers", layers, "--batches", batches, "--ranks", str(ranks), "--rounds", str(rounds)]
        arguments += ["--compute"] if compute else []
        arguments += [] if gflops is None else ["--gflops", str(gflops)]
        arguments += [f"--set={item}" for item in assignments]
        rows = measure_here("fc", ranks, arguments, trace=trace)["rows"]
    else:
        listener = options.listener(job, rank)
        layout = Layout((LayerSpec("none", (TensorSpec("none", (1,)),)),))
        tracer = Tracer() if trace is not None else Tracer.off()
        threads = share_of_threads(job, ranks)
        with meet(job, rank, layout, listener) as meeting, threadpool_limits(threads):
            if compute:
                schemes: tuple[Scheme, ...] = get_args(Scheme)
                flops = None if gflops is None else gflops * 1e9
                timed = partial(time_schemes, meeting.communicator, rounds=rounds, flops=flops, tracer=tracer)
                rows = [row for shape in shapes for size in sizes for row in timed(shape, size, schemes)]
            else:
                rows = time_exchanges(meeting.communicator, shapes, sizes, rounds=rounds)
            meeting.client.finish()
        _write_trace(tracer, trace)
    if rank is None or rank == 0:
        _tell(rows)
    if options.json_file is not None:
        write_json(options.json_file, {"rows": rows})


def _parse_layers(text: str) -> list[FcLayer]:
    found = [_LAYER.match(item) for item in text.split(",")]
    if not all(found):
        raise ConfigError(f"--layers {text}: expected inputs and outputs, for example 25088x4096,4096x1000")
    return [FcLayer(match[0], int(match[1]), int(match[2])) for match in found if match]


def _parse_batches(text: str) -> list[int]:
    sizes = [int(item) if item.isdecimal() else 0 for item in text.split(",")]
    if not all(sizes):
        raise ConfigError(f"--batches {text}: expected numbers of examples, for example 1,16,128")
    return sizes


def _check_speed(gflops: float | None, *, compute: bool) -> None:
    if gflops is None:
        return
    if not compute:
        raise ConfigError("--gflops is of products: give --compute too")
    if not 0 < gflops < float("inf"):
        raise ConfigError(f"--gflops {gflops:g}: expected more than 0 billion operations a second, for example 0.5")


def _write_trace(tracer: Tracer, trace: Path | None) -> None:
    if trace is not None:
        part = trace.with_name(f".{trace.name}.part")
        tracer.write_part(part, "rank 0", 0)
        merge_parts([part], trace)
        part.unlink()


def _tell(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        name = f"{row['inputs']:>6}x{row['outputs']:<5} batch {row['batch']:>3}, {counted(row['ranks'], 'rank')}"
        if "scheme" in row:
            hidden = f"hidden {row['hidden_in_ratio']:.0%} in, {row['hidden_back_ratio']:.0%} back"
            typer.echo(f"{name}, {row['scheme']:<6}: {row['seconds']['median'] * 1e3:9.2f} ms, {hidden}")
            continue
        data, shard = row["data_seconds"]["median"], row["shard_seconds"]["median"]
        typer.echo(
            f"{name}: data {data * 1e3:9.2f} ms, sharded {shard * 1e3:8.2f} ms ({data / shard:.1f} times); predicted "
            f"{row['predicted_data_seconds'] * 1e3:.2f}, {row['predicted_shard_seconds'] * 1e3:.2f}: "
            f"{row['choice']}, by the printed rule {row['rule']}"
        )
