"""Every command of README.md that needs nothing runs as printed, in the order in which they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.readme import README, commands, files

from taihu.job.environment import without_settings

# Enough steps for a plan, and as few processes as the command leaves open.
FEW = {
    "TAIHU_TRAIN__STEPS": "12",
    "TAIHU_EXCHANGE__CALIBRATION_STEPS": "4",
    "TAIHU_CLUSTER__SERVERS": "1",
    "TAIHU_CLUSTER__WORKERS": "2",
    "TAIHU_CLUSTER__THREADS": "1",
    # Kernels of all these commands may be compiled for the first time, by processes that share few cores.
    "TAIHU_CLUSTER__LOST_AFTER_S": "120",
}
NOT_HERE = ("make", ".", "cd", "git")


@pytest.mark.timeout(1500)
def test_the_commands_of_the_readme_run_as_printed(tmp_path: Path) -> None:
    text = README.read_text()
    for name, content in files(text).items():
        (tmp_path / name).write_text(content)
    environment = {
        **without_settings(os.environ),
        **FEW,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ran = 0
    for command in commands(text):
        if command.needs or command.text.split()[0] in NOT_HERE:
            continue
        done = subprocess.run(
            ["bash", "-euc", command.text],  # noqa: S607
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, f"{command.text}\n{done.stdout}{done.stderr}"
        ran += 1
    assert ran >= 10
