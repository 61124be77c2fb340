"""`taihu`, also `python -m taihu`."""

from __future__ import annotations

import os

from taihu.process.guard import check_installation
from taihu.process.preparation import prepare_process

__all__ = ["main"]


def main() -> None:
    """Check whose packages these are and prepare the process, before anything else is imported."""
    check_installation()
    prepare_process(os.environ)
    from taihu.cli.main import run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
