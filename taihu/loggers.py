"""Loggers of one's own, as installed packages bring them (docs/results.md).

Everything here is `taihu.core.job.loggers`'s, by the name that is meant for programs.
"""

from __future__ import annotations

from taihu.core.job.loggers import Kind, LoggedRow, LoggedRun, Logger, State

__all__ = ["Kind", "LoggedRow", "LoggedRun", "Logger", "State"]
