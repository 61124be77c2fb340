"""`taihu`, also `python -m taihu`."""

from __future__ import annotations

import os

from taihu.blas import prefer_widest_vectors
from taihu.guard import check_installation

__all__ = ["main"]


def main() -> None:
    """Check whose packages these are and choose NumPy's BLAS, before anything of either is imported."""
    check_installation()
    prefer_widest_vectors(os.environ)
    from taihu.cli.main import run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
