"""The command `taihu server`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from taihu.entry import raise_on_terminate
from taihu.options import (
    AdvertiseOption,
    BindOption,
    ComputeOption,
    CoordinatorOption,
    JobArgument,
    LingerOption,
    LogFormatOption,
    MetricsPortOption,
    ServersOption,
    SetOption,
    StopWithStdinOption,
    TraceOption,
    TraceStepsOption,
    VerboseOption,
    WorkersOption,
    make_tracer,
    stop_with_stdin,
)
from taihu.results import check_writable

__all__ = ["server"]


def server(
    job_file: JobArgument = None,
    index: Annotated[
        str | None,
        typer.Option("--index", metavar="I|dns:NAME", help="Index of this server; 0 coordinates the run."),
    ] = None,
    bind: BindOption = "",
    advertise: AdvertiseOption = "",
    coordinator: CoordinatorOption = None,
    servers: ServersOption = None,
    workers: WorkersOption = None,
    compute: ComputeOption = None,
    assignments: SetOption = None,
    metrics_port: MetricsPortOption = 0,
    linger: LingerOption = 0.0,
    hold: Annotated[
        bool,
        typer.Option("--hold", envvar="TAIHU_HOLD", help="After a run that finished, stay until SIGTERM."),
    ] = False,
    trace: TraceOption = None,
    trace_steps: TraceStepsOption = None,
    log_format: LogFormatOption = "auto",
    verbose: VerboseOption = False,
    stop_with_parent: StopWithStdinOption = False,
) -> None:
    """Run one parameter server until its run has ended.

    \b
    Examples:
      taihu server job.toml --index 0 --coordinator 10.0.0.1:7070
      taihu server job.toml --index 1 --coordinator 10.0.0.1:7070
      taihu server job.toml --index dns:server --coordinator dns:server:7070      # one of the addresses of a name
    """  # noqa: D301
    from ps_server.daemon import ServerDaemon, ServerOptions
    from taihu.discovery import find_coordinator, find_rank
    from taihu.environment import resolve_job
    from taihu.wire.log import configure_logs

    cluster = {"coordinator": coordinator, "servers": servers, "workers": workers, "compute": compute}
    flags = {"cluster": cluster}
    job = resolve_job(job_file, assignments or (), flags, launched=True)
    check_writable(trace)
    raise_on_terminate()
    job = find_coordinator(job)
    place = find_rank(index, os.environ, "server", job) or 0
    configure_logs(log_format, verbose=verbose, role="server", rank=place)
    if stop_with_parent:
        stop_with_stdin()
    options = ServerOptions(
        index=place,
        bind=bind,
        advertise=advertise,
        metrics_port=metrics_port,
        linger_s=linger,
        hold=hold,
        trace=trace,
        tracer=make_tracer(trace, trace_steps),
    )
    with ServerDaemon(job, options) as daemon:
        typer.echo(f"listening on {daemon.address}, metrics on port {daemon.metrics_port}")
        daemon.run()
