"""The `taihu` command line."""

from __future__ import annotations

import typer

import taihu
from ps_server.command import server
from taihu.cli.bench import bench_app
from taihu.cli.evaluate import evaluate_file
from taihu.cli.manifest import manifest_command
from taihu.cli.plan import plan
from taihu.cli.status import status
from taihu.cli.top import top
from taihu.cli.train import train
from taihu.entry import run_app
from worker.command import worker

__all__ = ["make_app", "run"]


def make_app() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        name="taihu",
        help="Train neural networks on many ordinary machines over ordinary networks.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command()(train)
    app.command()(server)
    app.command()(worker)
    app.command()(status)
    app.command()(top)
    app.command()(plan)
    app.command("evaluate")(evaluate_file)
    app.command("manifest")(manifest_command)
    app.add_typer(bench_app, name="bench")
    app.command()(version)
    return app


def version() -> None:
    """Print the version."""
    typer.echo(taihu.__version__)


def run() -> None:
    """Run the command line and exit."""
    run_app(make_app())
