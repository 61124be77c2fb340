"""Agents that are killed, join and leave while a run goes on, whose bits do not depend on that."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from support.agents import come_go_and_die

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def test_agents_come_and_go_and_die(tmp_path: Path, taihu: Taihu) -> None:
    come_go_and_die(("--servers", "2"), ("server 0", "server 1"), tmp_path, taihu)
