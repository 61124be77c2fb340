"""Each how-to as it is typed: its commands one after the other in a folder with a job and a script.

Commands that need more say so, and another test runs their like.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import PATIENCE_S
from support.pages import DOCS, blocks
from support.readme import README, commands, files

from taihu.core.job.environment import without_settings

ROOT = README.parent
PAGES = sorted((DOCS / "howto").glob("*.md"))
LIKE = {
    "crash": "tests/end_to_end/test_resume.py",
    "hosts": "tests/programs/test_node.py",
    "ssh": "tests/programs/with_torch/test_launch_by_ssh.py",
    "slurm": "tests/programs/with_torch/test_slurm.py",
    "transformers": "tests/with_torch/test_huggingface.py",
    "network": "tests/test_packaging.py",
    "podman": "tests/deploy",
    "kubectl": "tests/deploy",
}
"""Tests that run commands of this kind, with what they need."""
OWN_METHOD = next(block for block in blocks((DOCS / "own_methods.md").read_text()) if block.language == "python")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_how_to_is_followed(page: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(files((DOCS / "guide.md").read_text())["job.toml"])
    (tmp_path / "train.py").write_text(files(README.read_text())["train.py"])
    (tmp_path / "random_k.py").write_text(OWN_METHOD.text)
    for command in commands(page.read_text()):
        if command.needs:
            continue
        program, *words = shlex.split(command.text)
        assert program == "taihu", f"{command.text}: say that it needs {program}"
        done = subprocess.run(
            [sys.executable, "-P", "-m", program, *words],
            cwd=tmp_path,
            env=without_settings(os.environ),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command.text}: {done.stderr}"


@pytest.mark.parametrize("need", sorted(LIKE))
def test_what_a_how_to_needs_another_test_has(need: str) -> None:
    assert (ROOT / LIKE[need]).exists()


def test_how_tos_need_nothing_that_no_test_has() -> None:
    needs = {need for page in PAGES for command in commands(page.read_text()) for need in command.needs}
    assert needs == LIKE.keys()
