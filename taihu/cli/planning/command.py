"""`taihu plan`: of a step's time, or with --memory of what the processes take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from taihu.errors import ConfigError
from taihu.job.flags import JobFlags, takes_job_flags
from taihu.process.options import CoordinatorOption, JsonOption

__all__ = ["plan"]

# What the plan of a step's time can be asked for as well: instead of what was measured.
_OF_BOTH: Final = ("--compression", "--density", "--plan", "--workers")


@takes_job_flags
def plan(
    profile_file: Annotated[
        Path | None,
        typer.Argument(metavar="PROFILE.json", help="A profile, or what `taihu train --json` wrote."),
    ] = None,
    *,
    coordinator: CoordinatorOption = None,
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
    memory: Annotated[bool, typer.Option("--memory", help="Plan the memory of a job instead of its time.")] = False,
    table: Annotated[
        bool, typer.Option("--table", help="With --memory: tables 1 and 2 of the ZeRO paper, by the same formulas.")
    ] = False,
    job_file: Annotated[
        Path | None,
        typer.Option("--job", metavar="JOB.toml", help="With --memory: the job; by default, the demo job."),
    ] = None,
    free_worker: Annotated[
        str | None, typer.Option(metavar="SIZE", help="With --memory: free for one worker, e.g. 4GB.")
    ] = None,
    free_server: Annotated[
        str | None, typer.Option(metavar="SIZE", help="With --memory: free for one server, e.g. 4GB.")
    ] = None,
    json_file: JsonOption = None,
    flags: JobFlags,
) -> None:
    """Predict the time of a step from a job's measured costs, and merge its layers so that it is shortest.

    Results of `taihu train --json` say how the run compressed, which is what is predicted unless options ask for
    something else; a bare profile and a running job are predicted without compression.

    With --memory: what every process of a job takes, by kind of state, with activations; whether so much is free; and
    the largest batch for each stage of ZeRO, with and without activations that are computed again.

    \b
    Examples:
      taihu plan result.json
      taihu plan result.json --compression dlgs --density 0.001 --workers 16 --rate 1gbit
      taihu plan result.json --compression dlgs --timeline paper --plan greedy
      taihu plan --coordinator 10.0.0.1:7070 --plan bucket:4MB --json plan.json
      taihu plan --memory --job job.toml --set exchange.zero=2 --free-worker 4GB
      taihu plan --memory --model resnet50 --data synthetic:3x224x224 --exchange ring --free-worker 16GB
      taihu plan --memory --table
    """  # noqa: D301
    of_time = {
        "PROFILE.json": profile_file,
        "--coordinator": coordinator,
        "--rate": rate,
        "--timeline": timeline != "overlapped",
    }
    job_alone = {name: value for name, value in flags.given().items() if name not in _OF_BOTH}
    of_job = {"--job": job_file, "--free-worker": free_worker, "--free-server": free_server}
    _check_mode(memory, of_memory={**of_job, **job_alone, "--table": table}, of_time=of_time)
    if table:
        from taihu.cli.planning.tables import plan_tables

        _check_table({**of_job, **flags.given()})
        plan_tables(json_file)
    elif memory:
        from taihu.cli.planning.memory import plan_memory
        from taihu.job.advice import advice

        job = flags.resolve(job_file)
        for line in advice(job):
            typer.echo(f"warning: {line}", err=True)
        plan_memory(job, free_worker, free_server, json_file)
    else:
        from taihu.cli.planning.time import AskedCompression, Costs, plan_time

        asked = AskedCompression(flags.compression, flags.density, refresh_every, downlink, threshold)
        costs = Costs(profile_file, coordinator, flags.workers, rate)
        plan_time(costs, asked, flags.plan or "auto", timeline, json_file)


def _check_mode(memory: bool, *, of_memory: Mapping[str, object], of_time: Mapping[str, object]) -> None:
    """Raise ConfigError for an option of the other kind of plan: `of_memory` go with --memory only."""
    refused = of_time if memory else of_memory
    name = next((name for name, value in refused.items() if value), None)
    if name is not None and memory:
        raise ConfigError(f"{name}: --memory plans no measured costs; give the job by --job JOB.toml and --set")
    if name is not None:
        raise ConfigError(f"{name}: belongs to the plan of a job's memory; give --memory as well")


def _check_table(of_job: Mapping[str, object]) -> None:
    """Raise ConfigError for an option of a job: the tables are of models of their own."""
    if name := next((name for name, value in of_job.items() if value), None):
        raise ConfigError(f"{name}: --table is of a paper's models, not of a job; leave one of the two out")
