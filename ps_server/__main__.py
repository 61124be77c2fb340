"""`python -m ps_server`: the same as `taihu server`."""

from __future__ import annotations

import os

import typer

from taihu.blas import prefer_widest_vectors
from taihu.entry import run_app

__all__ = ["main"]


def main() -> None:
    """Run the command; NumPy is imported after its BLAS has been chosen."""
    prefer_widest_vectors(os.environ)
    from ps_server.command import server  # noqa: PLC0415

    app = typer.Typer(add_completion=False)
    app.command()(server)
    run_app(app)


if __name__ == "__main__":
    main()
