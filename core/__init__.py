"""The ground that daemons stand on: jobs, plans, compression, checkpoints, coordination, the wire, processes."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
