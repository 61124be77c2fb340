"""Common parts of the tests of deploy/."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEPLOY"]

DEPLOY = Path(__file__).parents[2] / "deploy"
