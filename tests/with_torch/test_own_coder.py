"""A coder that an installed package brings trains a script, by the command that users type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import PATIENCE_S
from support.readme import README, files

from taihu.core.job.environment import without_settings

OWN = Path(__file__).parents[1] / "traits" / "own" / "blocks.py"


@pytest.mark.parametrize("servers", [0, 1])
def test_a_script_learns_by_it(tmp_path: Path, servers: int) -> None:
    package = tmp_path / "installed"
    metadata = package / "own-1.0.dist-info"
    metadata.mkdir(parents=True)
    (package / "blocks.py").write_text(OWN.read_text())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[taihu.methods]\nblocks = blocks:METHOD\n")
    (tmp_path / "train.py").write_text(files(README.read_text())["train.py"])
    flags = ("--workers", "2", *(("--servers", str(servers)) if servers else ()), "--compression", "blocks")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "taihu", "run", *flags, "train.py"],
        env={**without_settings(os.environ), "PYTHONPATH": str(package)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 5
    assert losses[-1] < 0.6 * losses[0]
