"""Other processes: forks of this one, and programs."""

from __future__ import annotations

from os import fork
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired, run

__all__ = ["DEVNULL", "PIPE", "Popen", "TimeoutExpired", "fork", "run"]
