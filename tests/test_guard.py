"""The packages have short names: another distribution in the place of one is noticed before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from taihu.guard import PACKAGES, foreign_packages

OURS = [name for name in PACKAGES if name != "taihu"]


def python(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with `path` before everything that is installed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=path,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def package(name: str, distribution: str | None) -> ModuleType:
    module = ModuleType(name)
    if distribution is not None:
        module.__dict__["__distribution__"] = distribution
    return module


def test_an_installation_of_our_own_passes(tmp_path: Path) -> None:
    done = python(tmp_path, "-c", "from taihu.guard import check_installation; check_installation()")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("owner", [None, "huggingface-kernels"])
@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_does_not_say_it_is_ours_is_foreign(name: str, owner: str | None) -> None:
    ours = {each: package(each, "taihu") for each in PACKAGES}
    assert foreign_packages(ours) == []
    assert foreign_packages({**ours, name: package(name, owner)}) == [name]


@pytest.mark.parametrize("name", OURS)
def test_the_command_names_the_package_and_its_place(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    done = python(tmp_path, "-m", "taihu", "--version")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    for word in ("error: another distribution owns", name, str(tmp_path), "virtual environment"):
        assert word in done.stderr


def test_all_foreign_packages_are_named_in_one_line(tmp_path: Path) -> None:
    for name in OURS:
        (tmp_path / name).mkdir()
    done = python(tmp_path, "-c", "from taihu.guard import check_installation; check_installation()")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    for name in OURS:
        assert f"{name} (" in done.stderr
