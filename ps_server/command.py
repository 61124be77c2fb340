"""The command `taihu server`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from taihu.core.base.errors import FinishedError
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.core.process.options import DaemonOptions, supervised_by
from taihu.core.process.programs.preparation import importing_much
from taihu.core.process.results import check_writable, write_json
from taihu.core.process.streams import outlive_output


@takes_options
def server(
    *,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank", "--index", metavar="R|dns:NAME", help="Rank of this server, from 0; 0 coordinates the run."
        ),
    ] = None,
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

    \b
    Examples:
      taihu server job.toml --rank 0 --coordinator 10.0.0.1:7070
      taihu server job.toml --rank 1 --coordinator 10.0.0.1:7070
      taihu server job.toml --rank dns:server --coordinator dns:server:7070      # one of the addresses of a name
    """  # noqa: D301
    interrupts = Interrupts()
    supervised_by(process.supervisor, interrupts)
    outlive_output()
    with importing_much():
        from taihu.core.checkpoint.keepers import recovers, tell_finished
        from taihu.core.coordination.discovery import find_coordinator, find_rank
        from taihu.core.coordination.membership.members import RunState
        from taihu.core.job.chaos import chaos_of
        from taihu.core.process.notices import Notices
        from taihu.core.wire.base.clock import WallClock
        from taihu.core.wire.base.log import configure_logs
        from taihu.ps_server.daemon import ServerDaemon, ServerOptions

    own: dict[str, dict[str, object]] = {
        "cluster": {"coordinator": process.coordinator},
        "checkpoint": {"resume": process.resume},
    }
    job = flags.resolve(process.job_file, own, launched=True)
    interrupts.install(leaves=process.on_term == "leave" and recovers(job))
    interrupts.are_heard()
    if tell_finished(job):
        if hold:
            _stay(process.metrics_port, process.bind, interrupts)
        return 0
    check_writable(process.json_file, process.trace)
    job = find_coordinator(job)
    place = find_rank(rank, os.environ, "server", job) or 0
    wall = WallClock()
    configure_logs(process.log_format, verbose=process.verbose, wall=wall, role="server", rank=place)
    options = ServerOptions(
        index=place,
        bind=process.bind,
        advertise=process.advertise,
        direct_port=process.direct_port,
        metrics_port=process.metrics_port,
        linger_s=process.linger,
        hold=hold,
        trace=process.trace,
        tracer=process.tracer(),
        interrupts=interrupts,
        chaos=chaos_of(job, f"server {place}", wall),
        notices=Notices(are_read=process.supervisor is not None),
    )
    with ServerDaemon(job, options) as daemon:
        typer.echo(f"listening on {daemon.address}, metrics on port {daemon.metrics_port}")
        try:
            state = daemon.run()
        except FinishedError as error:
            typer.echo(str(error))
            return 0
        if process.json_file is not None:
            write_json(process.json_file, daemon.results())
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
