"""Agents that run the workers of a compressed ring, all but the one where the others meet."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from support.agents import come_go_and_die

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def test_agents_come_and_go_and_die_in_a_ring(tmp_path: Path, taihu: Taihu) -> None:
    flags = ("--exchange", "ring", "--compression", "dlgs", "--density", "0.1")
    come_go_and_die(flags, ("worker 0",), tmp_path, taihu)
