"""`taihu plan step`, `memory` and `search`: a step's time, what its processes take, and how to run a job best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taihu.core.process.options import (
    CoordinatorOption,
    JobArgument,
    JsonOption,
    OutOption,
    ServersOption,
    SetOption,
    WorkersOption,
    refuse,
)


def step(
    profile_file: Annotated[
        Path | None,
        typer.Argument(metavar="PROFILE.json", help="A profile, or what `taihu train --json` wrote."),
    ] = None,
    *,
    coordinator: CoordinatorOption = None,
    compression: Annotated[
        str | None, typer.Option(metavar="none|topk|lags|dlgs", help="How gradients are made sparse.")
    ] = None,
    density: Annotated[
        float | None, typer.Option(metavar="R", help="Share of the gradient that is sent, of a compressed one.")
    ] = None,
    refresh_every: Annotated[
        int | None, typer.Option(metavar="S", help="Steps between exact thresholds of dlgs.")
    ] = None,
    threshold: Annotated[
        Literal["layer", "group"] | None,
        typer.Option(metavar="layer|group", help="What shares a threshold of dlgs."),
    ] = None,
    downlink: Annotated[
        Literal["dense", "exact", "doublesqueeze"] | None,
        typer.Option(metavar="dense|exact|doublesqueeze", help="What comes back."),
    ] = None,
    plan: Annotated[
        str, typer.Option(metavar="P", help="Merging: auto, greedy, exact, per-layer, single or bucket:SIZE.")
    ] = "auto",
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Predict for so many workers.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Predict for links of this rate at every host: 100mbit, 1gbit.")
    ] = None,
    timeline: Annotated[
        Literal["overlapped", "inline", "paper"],
        typer.Option(
            metavar="overlapped|inline|paper",
            help="Steps that compress beside computing; on the thread that computes; or so, and whose transfers go "
            "one way at a time: the paper's equations.",
        ),
    ] = "overlapped",
    json_file: JsonOption = None,
) -> None:
    """Predict the time of a step from a job's measured costs, and merge its layers so that it is shortest.

    Results of `taihu train --json` say how the run compressed, which is what is predicted unless options ask for
    something else; a bare profile and a running job are predicted without compression.

    \b
    Examples:
      taihu plan step result.json
      taihu plan step result.json --compression dlgs --density 0.001 --workers 16 --rate 1gbit
      taihu plan step result.json --compression dlgs --timeline paper --plan greedy
      taihu plan step --coordinator 10.0.0.1:7070 --plan bucket:4MB --json plan.json
    """  # noqa: D301
    from taihu.cli.planning.time import AskedCompression, Costs, method_asked, plan_time
    from taihu.core.job.environment import resolve_job
    from taihu.core.job.security import security_of_onlooker

    asked = AskedCompression(method_asked(compression), density, refresh_every, downlink, threshold)
    # Options are of what is predicted: the environment alone says how to reach the run.
    reached = None if coordinator is None else resolve_job(None, (), {})
    security = None if reached is None else security_of_onlooker(reached, "observer", str(coordinator))
    plan_time(Costs(profile_file, coordinator, workers, rate, security), asked, plan, timeline, json_file)


def memory(
    job_file: JobArgument = None,
    *,
    servers: ServersOption = None,
    workers: WorkersOption = None,
    assignments: SetOption = None,
    free_worker: Annotated[str | None, typer.Option(metavar="SIZE", help="Free for one worker, e.g. 4GB.")] = None,
    free_server: Annotated[str | None, typer.Option(metavar="SIZE", help="Free for one server, e.g. 4GB.")] = None,
    table: Annotated[
        bool, typer.Option("--table", help="The tables of the ZeRO paper instead, by the same formulas.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Tell what every process of a job takes, by kind of state, with activations; and whether so much is free.

    And the largest batch for each stage of ZeRO, with and without activations that are computed again.

    \b
    Examples:
      taihu plan memory job.toml --set exchange.zero=2 --free-worker 4GB
      taihu plan memory --set model.name=resnet50 --set data.name=synthetic:3x224x224 --free-worker 16GB
      taihu plan memory --table
    """  # noqa: D301
    if table:
        from taihu.cli.planning.tables import plan_tables

        given: dict[str, object] = {"JOB.toml": job_file, "--set": assignments or None}
        given |= {"--servers": servers, "--workers": workers}
        given |= {"--free-worker": free_worker, "--free-server": free_server}
        refuse(given, "--table is of a paper's models, not of a job; leave one of the two out")
        plan_tables(json_file)
        return
    from taihu.cli.planning.memory import plan_memory
    from taihu.core.job.advice import advice
    from taihu.core.job.environment import resolve_job

    job = resolve_job(job_file, assignments or (), _sizes(servers, workers))
    for line in advice(job):
        typer.echo(f"warning: {line}", err=True)
    plan_memory(job, free_worker, free_server, json_file)


def search(
    job_file: JobArgument = None,
    *,
    servers: ServersOption = None,
    workers: WorkersOption = None,
    assignments: SetOption = None,
    machines: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.toml|taihulight|ethernet:RATE",
            help="Hosts, their memory and their links; without it, links as the run of --profile measured them.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN.json",
            help="Compute and compression as a run of the job measured them; without it, the modelled times of an "
            "SW26010.",
        ),
    ] = None,
    min_density: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="The least share of a gradient that may be sent; by default what the job itself sends, everything "
            "where it does not compress.",
        ),
    ] = None,
    precisions: Annotated[
        str | None,
        typer.Option(
            metavar="fp32,bf16,fp16", help="What may be exchanged; by default fp32 and the job's own precision."
        ),
    ] = None,
    min_bits: Annotated[
        int | None,
        typer.Option(
            metavar="8|4|2",
            help="The least bits of a compressed gradient's value, up and down; by default the job's own, 32 where "
            "it does not compress.",
        ),
    ] = None,
    best: Annotated[int, typer.Option(metavar="N", min=1, help="Ways that are ranked.")] = 10,
    out: OutOption = None,
    json_file: JsonOption = None,
) -> None:
    """Search for the fastest way to run a job on given machines, by simulation; --out writes its job file.

    Compared are a ring and servers, compression, plans, layers that are spread, ZeRO, precision and recomputation
    (docs/simulation.md); each of the others is told why it loses. The number of workers and their batch stay. What
    loses accuracy beyond what the job itself does is not tried unless --min-density, --min-bits and --precisions
    allow it.
    Machines are a file as of `taihu simulate run --help`, where `hosts` under [machines] says how many there are, and
    `memory`, as in "16GB", what is free on each; Python and its libraries, about 200 MB in each process, are not
    counted.

    \b
    Examples:
      taihu plan search job.toml --machines lab.toml --profile result.json --out best.toml
      taihu plan search job.toml --machines ethernet:1gbit --min-density 0.01 --precisions fp32,bf16
      taihu plan search job.toml --machines ethernet:1gbit --min-bits 8          all values, in a quarter of the bytes
    """  # noqa: D301
    from taihu.cli.planning.search import AskedSearch, plan_search
    from taihu.core.job.environment import resolve_job

    limits = AskedSearch(machines, profile, min_density, precisions, best, out, json_file, min_bits)
    plan_search(resolve_job(job_file, assignments or (), _sizes(servers, workers)), limits)


def _sizes(servers: int | None, workers: int | None) -> dict[str, dict[str, int | None]]:
    return {"cluster": {"servers": servers, "workers": workers}}
