"""`taihu`, also `python -m taihu`."""

from __future__ import annotations

import os
from typing import NoReturn

from taihu.process.guard import check_installation, check_surroundings
from taihu.process.preparation import prepare_process
from taihu.process.streams import open_streams

__all__ = ["main", "run"]


def main() -> None:
    """Check whose packages these are and prepare the process, before anything else is imported."""
    open_streams()
    check_surroundings(os.environ)
    check_installation()
    prepare_process(os.environ)
    run()


def run() -> NoReturn:
    """Run the command line in a process that is prepared, and exit."""
    from taihu.cli import main as commands  # noqa: PLC0415

    commands.run()


if __name__ == "__main__":
    main()
