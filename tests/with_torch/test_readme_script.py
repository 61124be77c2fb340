"""The script of README.md, as the installed wheel writes it, by the lines that stand below it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import PATIENCE_S
from support.readme import README, commands, files
from support.wheel import install_wheel

from taihu.core.job.environment import without_settings

TEXT = README.read_text()


def test_the_wheel_writes_the_script_of_the_readme_which_runs_as_printed(
    tmp_path: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    environment = without_settings(install_wheel(wheel, tmp_path_factory.mktemp("site")))
    lines = [each.text for each in commands(TEXT) if each.text.startswith(("taihu example", "taihu run"))]
    assert [line.split()[1] for line in lines] == ["example", "run"]
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-P", "-m", *shlex.split(line)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.py").read_text() == files(TEXT)["train.py"]
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+)$", done.stdout, re.M)]
    assert len(losses) == 5
    assert losses[-1] < 0.6 * losses[0]
    assert re.search(r"^bytes per step  ", done.stderr, re.M)


def test_three_lines_are_taihus() -> None:
    marked = [line for line in files(TEXT)["train.py"].splitlines() if line.endswith("# taihu")]
    assert len(marked) == 3
    assert [line for line in files(TEXT)["train.py"].splitlines() if "taihu" in line] == marked
