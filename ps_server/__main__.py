"""`python -m ps_server`: the same as `taihu server`."""

from __future__ import annotations

import os

import typer

from taihu.entry import run_app
from taihu.process import prepare_process

__all__ = ["main"]


def main() -> None:
    """Run the command; the process is prepared before NumPy and gRPC are imported."""
    prepare_process(os.environ)
    from ps_server.command import server  # noqa: PLC0415

    app = typer.Typer(add_completion=False)
    app.command()(server)
    run_app(app)


if __name__ == "__main__":
    main()
