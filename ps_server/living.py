"""The life of a server's process: in its own place of a run or, where it joined, in one place after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog
import typer

from taihu.core.coordination.membership.members import RunState
from taihu.core.job import Job
from taihu.ps_server.daemon import ServerDaemon, ServerOptions
from taihu.ps_server.seat import MovedError, OwnSeat


def serve(job: Job, options: ServerOptions) -> tuple[RunState, dict[str, Any]]:
    """Serve until the run has ended: whether it has finished or was stopped, and the results.

    Raises:
        TaihuError: see `ServerDaemon.run`.
    """
    with ServerDaemon(job, options) as daemon:
        typer.echo(f"listening on {daemon.address}, metrics on port {daemon.metrics_port}")
        return daemon.run(), daemon.results()


def serve_joined(job: Job, options: ServerOptions, name: str) -> tuple[RunState, dict[str, Any]]:
    """As `serve`, in the places that a run tells this server, whose `name` is for people.

    Raises:
        TaihuError: see `OwnSeat.await_place` and `ServerDaemon.run`.
    """
    seat = OwnSeat(job, name)
    with seat.kept():
        while True:
            index = seat.await_place()
            try:
                return serve(job, replace(options, index=index, seat=seat))
            except MovedError as error:
                structlog.get_logger().info("moved", reason=str(error))
