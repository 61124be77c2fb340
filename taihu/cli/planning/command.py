"""`taihu plan`: of a step's time, with --memory of what the processes take, with --search of how to run a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from taihu.core.job.flags import JobFlags, takes_job_flags
from taihu.core.process.options import CoordinatorOption, JsonOption, refuse

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
    search: Annotated[
        Path | None,
        typer.Option(metavar="JOB.toml", help="Search for the fastest way to run this job on the --machines."),
    ] = None,
    machines: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.toml|taihulight|ethernet:RATE",
            help="With --search: hosts, their memory and their links; without it, links as the run of --profile "
            "measured them.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN.json",
            help="With --search: compute and compression as a run of the job measured them; without it, the modelled "
            "times of an SW26010.",
        ),
    ] = None,
    min_density: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="With --search: the least share of a gradient that may be sent; by default what the job itself "
            "sends, everything where it does not compress.",
        ),
    ] = None,
    precisions: Annotated[
        str | None,
        typer.Option(
            metavar="fp32,bf16,fp16",
            help="With --search: what may be exchanged; by default fp32 and the job's own precision.",
        ),
    ] = None,
    best: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --search: ways that are ranked; by default 10.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="With --search: write the best way's job file.")
    ] = None,
    json_file: JsonOption = None,
    flags: JobFlags,
) -> None:
    """Predict the time of a step from a job's measured costs, and merge its layers so that it is shortest.

    Results of `taihu train --json` say how the run compressed, which is what is predicted unless options ask for
    something else; a bare profile and a running job are predicted without compression.

    With --memory: what every process of a job takes, by kind of state, with activations; whether so much is free; and
    the largest batch for each stage of ZeRO, with and without activations that are computed again.

    With --search: the fastest way to run a job on given machines, of a ring and servers, compression, plans, layers
    that are spread, ZeRO, precision and recomputation, by simulation (docs/simulation.md); why each of the others
    loses; and the winner's job file. The number of workers and their batch stay. What loses accuracy beyond what the
    job itself does is not tried unless --min-density and --precisions allow it. Machines are a file as of `taihu
    simulate --help`, where `hosts` under [machines] says how many there are, and `memory`, as in "16GB", what is free
    on each; Python and its libraries, about 200 MB in each process, are not counted.

    \b
    Examples:
      taihu plan result.json
      taihu plan result.json --compression dlgs --density 0.001 --workers 16 --rate 1gbit
      taihu plan result.json --compression dlgs --timeline paper --plan greedy
      taihu plan --coordinator 10.0.0.1:7070 --plan bucket:4MB --json plan.json
      taihu plan --memory --job job.toml --set exchange.zero=2 --free-worker 4GB
      taihu plan --memory --model resnet50 --data synthetic:3x224x224 --exchange ring --free-worker 16GB
      taihu plan --memory --table
      taihu plan --search job.toml --machines lab.toml --profile result.json --write best.toml
      taihu plan --search job.toml --machines ethernet:1gbit --min-density 0.01 --precisions fp32,bf16
    """  # noqa: D301
    of_time = {
        "PROFILE.json": profile_file,
        "--coordinator": coordinator,
        "--rate": rate,
        "--timeline": timeline != "overlapped",
    }
    of_compression = {"--refresh-every": refresh_every, "--threshold": threshold, "--downlink": downlink}
    job_alone = {name: value for name, value in flags.given().items() if name not in _OF_BOTH}
    of_job = {"--job": job_file, "--free-worker": free_worker, "--free-server": free_server}
    of_search = {
        "--machines": machines,
        "--profile": profile,
        "--min-density": min_density is not None,
        "--precisions": precisions,
        "--best": best,
        "--write": write,
    }
    if search is not None:
        refuse({"PROFILE.json": profile_file}, "does not go with --search; give what was measured by --profile")
        others = {**of_time, **of_compression, "--memory": memory, **of_job, "--table": table}
        refuse(others, "does not go with --search; set keys of the job by --set")
        from taihu.cli.planning.search import AskedSearch, plan_search

        limits = AskedSearch(machines, profile, min_density, precisions, best or 10, write, json_file)
        plan_search(flags.resolve(search), limits)
        return
    refuse(of_search, "belongs to the search for the best way to run a job; give --search JOB.toml too")
    if memory:
        refuse(of_time, "--memory plans no measured costs; give the job by --job JOB.toml and --set")
    else:
        of_memory = {**of_job, **job_alone, "--table": table}
        refuse(of_memory, "belongs to the plan of a job's memory; give --memory as well")
    if table:
        from taihu.cli.planning.tables import plan_tables

        given = {**of_job, **flags.given()}
        refuse(given, "--table is of a paper's models, not of a job; leave one of the two out")
        plan_tables(json_file)
    elif memory:
        from taihu.cli.planning.memory import plan_memory
        from taihu.core.job.advice import advice

        job = flags.resolve(job_file)
        for line in advice(job):
            typer.echo(f"warning: {line}", err=True)
        plan_memory(job, free_worker, free_server, json_file)
    else:
        from taihu.cli.planning.time import AskedCompression, Costs, method_asked, plan_time
        from taihu.core.job.environment import resolve_job
        from taihu.core.job.security import security_of_onlooker

        asked = AskedCompression(method_asked(flags.compression), flags.density, refresh_every, downlink, threshold)
        # Options are of what is predicted: the environment alone says how to reach the run.
        reached = None if coordinator is None else resolve_job(None, (), {})
        security = None if reached is None else security_of_onlooker(reached, "observer", str(coordinator))
        costs = Costs(profile_file, coordinator, flags.workers, rate, security)
        plan_time(costs, asked, flags.plan or "auto", timeline, json_file)
