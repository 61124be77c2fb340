"""The ground that daemons stand on: jobs, plans, compression, checkpoints, coordination, the wire, processes."""

from __future__ import annotations

__all__ = ["__version__"]

# The one place of the version: pyproject.toml reads it from here.
__version__ = "0.1.0"
