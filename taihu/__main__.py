"""`taihu`, also `python -m taihu`."""

from __future__ import annotations

import os

from taihu.core.process.programs.starting import end_at_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> None:
    """Look at the surroundings and prepare the process, before anything else is imported."""
    end_at_interrupt()
    from taihu.core.process.programs.guard import check_surroundings  # noqa: PLC0415
    from taihu.core.process.programs.preparation import prepare_process  # noqa: PLC0415
    from taihu.core.process.streams import open_streams  # noqa: PLC0415

    open_streams()
    check_surroundings(os.environ)
    prepare_process(os.environ)
    run()


def run() -> NoReturn:
    """Run the command line in a process that is prepared, and exit."""
    from taihu.cli import main as commands  # noqa: PLC0415

    commands.run()


if __name__ == "__main__":
    main()
