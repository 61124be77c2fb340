"""Commands for models of taihu's own refuse the compression of scripts in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run_command

COMMANDS = (
    "train",
    "worker --rank 0",
    "plan memory",
    "plan search --machines ethernet:1gbit",
    "simulate run --network ethernet:1gbit",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_compression_of_scripts_is_refused_in_one_line(command: str, tmp_path: Path) -> None:
    done = run_command("taihu", *command.split(), "--set", "compression.method=powersgd", folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "compression 'powersgd' is of a script's gradients, see `taihu run`" in line
