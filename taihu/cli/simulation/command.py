"""`taihu simulate run` and `figure`: steps on machines that are not there, and figures of papers by them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.process.options import JobArgument, JsonOption, ServersOption, SetOption


def run(
    job_file: JobArgument = None,
    *,
    servers: ServersOption = None,
    assignments: SetOption = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Workers, each on a host of its own: cluster.workers.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="taihulight|ethernet:RATE|FILE.toml",
            help="The machines; without it, links as the run of --profile measured them.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN.json",
            help="Compute and compression as a run measured them, by taihu train --json; without it, the modelled "
            "times of an SW26010.",
        ),
    ] = None,
    beside: Annotated[
        bool, typer.Option("--servers-beside", help="Server i shares the host of worker i, and its link.")
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=A..B",
            help="A row for each of several nodes or servers: nodes=2..1024 doubles, or nodes=2,3,9.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --sweep: draw the rows, as .png, .svg or .pdf.")
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Simulate hosts one by one, too, that are alike: the same, but slower.")
    ] = False,
    from_start: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="The first N steps of a run, from the plan that nothing was measured for on: measured, and planned "
            "anew as the daemons do; without it, steps by the plan that the machines' own costs lead to.",
        ),
    ] = None,
    lose: Annotated[
        str | None,
        typer.Option(
            metavar="worker:I@S+R",
            help="Worker or server I falls silent after S seconds, and is back R seconds later, 10 by default: when "
            "it is given up, which step is replayed, and the seconds lost.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record what would happen when, for ui.perfetto.dev.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Simulate the steps of a job on other machines: how long one takes, and where its time and bytes go.

    The daemons' own decisions are run on a virtual clock: the step protocol, the plan that merges layers, the
    servers' partition and sums, the ring's schedule. Beside them stand a model of the network, and times of compute.
    Workers that are alike are simulated once. train.seed is that of jitter and losses, too.

    A file of a network has these keys, of which the first two are needed:

    \b
      \\[network]
      alpha_seconds = 50e-6        # of a message, beside its bytes
      rate = "10gbit"              # of a host's port; or bytes_per_second
      full_duplex = true
      message_seconds = 0          # in which a port is busy with any message
      supernode = 0                # those joined at full speed, 0: all
      oversubscription = 1         # their ports together, over what leads out
      supernode_alpha_seconds = 0
      jitter = 0                   # of alpha: the deviation of its logarithm
      loss_ratio = 0               # messages sent again, retransmit_seconds later
      retransmit_seconds = 0.2
      \\[machines]
      add_bytes_per_second = inf   # gradients that a host adds up
      selected_value_seconds = 0   # to unpack, add up or pack a value that was selected
      jitter = 0                   # of compute, from step to step
      stragglers = 0               # workers that are so many times slower:
      straggler_slowdown = 2
      hosts = 0                    # how many there are; 0: one for every process
      memory = "16GB"              # free on each; or memory_bytes
      shared_cores = 0             # of one machine below all, each of which sends or takes in
      core_bytes_per_second = inf  # so many bytes of messages
      core_message_seconds = 0     # and each end of a message beside them
      core_compute_share = 0       # of compute that one of them does

    \b
    Examples:
      taihu simulate run job.toml --nodes 512 --network taihulight
      taihu simulate run --set model.name=resnet50 --set data.name=synthetic:3x224x224 --nodes 64 --network taihulight
      taihu simulate run job.toml --profile result.json --sweep nodes=2..1024 --out nodes.png
      taihu simulate run job.toml --profile result.json --network lab.toml --set exchange.zero=3 --trace trace.json
      taihu simulate run job.toml --profile result.json --network ethernet:1gbit --from-start 24
      taihu simulate run job.toml --profile result.json --network ethernet:1gbit --lose worker:3@12.5+20
    """  # noqa: D301
    from taihu.cli.simulation.run import Asked, run_simulation
    from taihu.core.job.environment import resolve_job

    swept = None if sweep is None else sweep.partition("=")[0]
    if swept == "nodes" and nodes is not None:
        raise ConfigError(f"--sweep {sweep}: --nodes {nodes} is given as well; leave one of the two out")
    if swept == "servers" and servers is not None:
        raise ConfigError(f"--sweep {sweep}: --servers {servers} is given as well; leave one of the two out")
    job = resolve_job(job_file, assignments or (), {"cluster": {"servers": servers, "workers": nodes}})
    run_simulation(job, Asked(network, profile, beside, sweep, out, distinct, from_start, lose, trace, json_file))


def figure(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which one; without it, a list.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    rates: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For dlgs: examples a second that a worker trains, by model, as JSON."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw it there, as NAME.png and NAME.svg.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Show a figure of a paper beside what the simulator says of it, by jobs and networks of its own.

    \b
    Examples:
      taihu simulate figure ps-vs-ring --json figure.json
      taihu simulate figure --all --out figures
      echo '{"resnet50": 721}' > rates.json && taihu simulate figure dlgs --rates rates.json
    """  # noqa: D301
    from taihu.cli.simulation.figure import run_figures

    run_figures(name, json_file, out, rates, every=every)
