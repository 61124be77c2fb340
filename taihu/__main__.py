"""`taihu`, also `python -m taihu`."""

from __future__ import annotations

from taihu.guard import check_installation

__all__ = ["main"]


def main() -> None:
    """Check that the packages are taihu's before anything of them is used, then run the command line."""
    check_installation()
    from taihu.cli.main import run  # noqa: PLC0415 - after the check

    run()


if __name__ == "__main__":
    main()
