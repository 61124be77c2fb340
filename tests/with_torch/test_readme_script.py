"""The script of README.md, by the line that stands below it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from support.commands import run_command
from support.readme import README, commands, files

TEXT = README.read_text()


def test_the_script_of_the_readme_runs_as_printed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(files(TEXT)["train.py"])
    [line] = [each.text for each in commands(TEXT) if each.text.startswith("taihu run")]
    done = run_command(*shlex.split(line), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+)$", done.stdout, re.M)]
    assert len(losses) == 5
    assert losses[-1] < 0.6 * losses[0]
    assert re.search(r"^bytes per step  ", done.stderr, re.M)


def test_three_lines_are_taihus() -> None:
    marked = [line for line in files(TEXT)["train.py"].splitlines() if line.endswith("# taihu")]
    assert len(marked) == 3
    assert [line for line in files(TEXT)["train.py"].splitlines() if "taihu" in line] == marked
