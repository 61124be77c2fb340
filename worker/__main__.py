"""`python -m taihu.worker`: the same as `taihu worker`."""

from __future__ import annotations

import os
from typing import NoReturn

from taihu.core.process.programs.guard import check_surroundings
from taihu.core.process.programs.preparation import prepare_process
from taihu.core.process.streams import open_streams


def main() -> None:
    """Look at the surroundings and prepare the process, before anything else is imported; run the command."""
    check_surroundings(os.environ)
    prepare_process(os.environ)
    run()


def run() -> NoReturn:
    """Run the command in a process that is prepared, and exit."""
    open_streams()
    from taihu.core.process.command_line import command_of  # noqa: PLC0415
    from taihu.core.process.entry import run_app  # noqa: PLC0415
    from taihu.worker.command import worker  # noqa: PLC0415

    run_app(command_of(worker))


if __name__ == "__main__":
    main()
