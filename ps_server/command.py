"""The command `taihu server`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from taihu.core.base.errors import FinishedError
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.core.process.options import DaemonOptions, refuse, supervised_by
from taihu.core.process.programs.preparation import importing_much
from taihu.core.process.results import check_writable, write_json
from taihu.core.process.streams import outlive_output
from taihu.core.system.signals import SIGINT, SIGTERM
from taihu.core.system.sockets import gethostname


@takes_options
def server(
    *,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank", "--index", metavar="R|dns:NAME", help="Rank of this server, from 0; 0 coordinates the run."
        ),
    ] = None,
    join: Annotated[
        bool,
        typer.Option(
            "--join", help="Join a run that goes on, beside its servers; SIGTERM or Ctrl-C has this one leave it."
        ),
    ] = False,
    hold: Annotated[
        bool,
        typer.Option("--hold", envvar="TAIHU_HOLD", help="After a run that finished, stay until SIGTERM."),
    ] = False,
    process: DaemonOptions,
    flags: JobFlags,
) -> int:
    """Run one parameter server until its run has ended.

    On SIGTERM or Ctrl-C the run ends in order after the next steps, and worker 0 saves the model; a second one ends
    this process at once. All processes of a run that was stopped exit with 130. With --on-term leave, where the run
    keeps checkpoints, SIGTERM has it kept and this process end alone, with 130, too: the others wait for another one.

    With --join, at any time, it takes part without a rank, as one more server: shards are divided anew behind the
    next steps, as they are when it leaves, or dies. The run's bits stay the same. It needs the same checkpoint.dir.

    \b
    Examples:
      taihu server job.toml --rank 0 --coordinator 10.0.0.1:7070
      taihu server job.toml --rank 1 --coordinator 10.0.0.1:7070
      taihu server job.toml --join --coordinator 10.0.0.1:7070                   # one more, while the run goes on
      taihu server job.toml --rank dns:server --coordinator dns:server:7070      # one of the addresses of a name
    """  # noqa: D301
    interrupts = Interrupts()
    supervised_by(process.supervisor, interrupts)
    outlive_output()
    with importing_much():
        from taihu.core.checkpoint.keepers import recovers, tell_finished
        from taihu.core.coordination.discovery import find_coordinator, find_rank
        from taihu.core.coordination.membership.members import RunState
        from taihu.core.coordination.servers.answering import check_joins
        from taihu.core.job.chaos import chaos_of
        from taihu.core.process.notices import Notices
        from taihu.core.wire.base.clock import WallClock
        from taihu.core.wire.base.log import configure_logs
        from taihu.ps_server.daemon import ServerOptions
        from taihu.ps_server.living import serve, serve_joined

    own: dict[str, dict[str, object]] = {
        "cluster": {"coordinator": process.coordinator},
        "checkpoint": {"resume": process.resume},
    }
    job = flags.resolve(process.job_file, own, launched=True)
    if join:
        refuse({"--rank": rank}, "is for a server that starts the run; one that joins is told its place")
        check_joins(job)
        interrupts.install(leaves=True, leaves_by=(SIGTERM, SIGINT))
    else:
        interrupts.install(leaves=process.on_term == "leave" and recovers(job))
    interrupts.are_heard()
    if tell_finished(job):
        if hold:
            _stay(process.metrics_port, process.bind, interrupts)
        return 0
    check_writable(process.json_file, process.trace)
    job = find_coordinator(job)
    name = f"{gethostname()}:{os.getpid()}"
    place = None if join else find_rank(rank, os.environ, "server", job) or 0
    wall = WallClock()
    who = name if place is None else place
    configure_logs(process.log_format, verbose=process.verbose, wall=wall, role="server", rank=who)
    options = ServerOptions(
        index=place or 0,
        bind=process.bind,
        advertise=process.advertise,
        direct_port=process.direct_port,
        metrics_port=process.metrics_port,
        linger_s=process.linger,
        hold=hold,
        trace=process.trace,
        tracer=process.tracer(),
        interrupts=interrupts,
        chaos=chaos_of(job, name if place is None else f"server {place}", wall),
        notices=Notices(are_read=process.supervisor is not None),
    )
    try:
        state, results = serve(job, options) if place is not None else serve_joined(job, options, name)
    except FinishedError as error:
        typer.echo(str(error))
        return 0
    if process.json_file is not None:
        write_json(process.json_file, results)
    return EXIT_INTERRUPTED if state is RunState.STOPPED else 0


def _stay(metrics_port: int, bind: str, interrupts: Interrupts) -> None:
    """Be a server whose run has finished, alive and not ready, until SIGTERM: it would be started again for ever."""
    from taihu.core.wire.base.address import host_of
    from taihu.core.wire.serving.health import Health
    from taihu.core.wire.serving.metrics import MetricsPage, ServerMetrics

    interrupts.are_no_error()
    health = Health()
    health.serve()
    health.retire()
    page = MetricsPage(ServerMetrics(0).registry, metrics_port, host_of(bind), health=health)
    typer.echo(f"metrics on port {page.port}")
    interrupts.await_end()
    page.close()
