"""The sdist and wheel in `dist/`, as `make dist` builds them, in an environment that has nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import PATIENCE_S
from support.wheel import build_wheel

from taihu import __version__
from taihu.core.job.environment import without_settings

DIST = Path(__file__).parents[2] / "dist"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which the wheel was installed, with the digits, by pip."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    [wheel] = DIST.glob("*.whl")
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", f"{wheel}[demo]"], check=True)
    return folder


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Runs a program of the environment in a folder of its own; returns what it prints."""

    def run_there(program: str, *arguments: str) -> str:
        settings = without_settings(os.environ)
        settings.pop("PYTHONPATH", None)
        done = subprocess.run(
            [environment / "bin" / program, *arguments],
            cwd=tmp_path,
            env={**settings, "PATH": f"{environment}/bin:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run_there


def test_the_wheel_of_the_sdist_has_all_that_the_checkouts_wheel_has(tmp_path: Path) -> None:
    """`build` makes the wheel in `dist/` from the sdist alone."""
    [made] = DIST.glob("*.whl")
    names = [sorted(zipfile.ZipFile(wheel).namelist()) for wheel in (made, build_wheel(tmp_path))]
    assert names[0] == names[1]
    assert made.name == f"taihu-{__version__}-py3-none-any.whl"


def test_the_sdist_says_what_it_is() -> None:
    [sdist] = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "."))]


def test_the_command_tells_its_version(run: Run) -> None:
    assert run("taihu", "--version") == f"taihu {__version__}\n"
    assert run("python", "-c", "import taihu; print(taihu.__version__)") == f"{__version__}\n"


def test_an_example_trains(run: Run) -> None:
    assert "taihu train job.toml" in run("taihu", "example", "own-model")
    told = run("taihu", "train", "job.toml", "--model", "mine.py:build", "--steps", "30")
    assert re.search(r"^test accuracy +\d", told, re.M)


def test_a_method_of_a_package_that_pip_installs_is_known_by_its_key(run: Run) -> None:
    run("taihu", "example", "own-method")
    run("taihu", "dev", "check-compressor", "random_k.py:METHOD")
    run("pip", "install", "--quiet", "--no-deps", ".")
    # The installed one, not the file here.
    Path(run("python", "-c", "import os; print(os.getcwd())").strip(), "random_k.py").unlink()
    told = run("taihu", "train", "--compression", "random-k", "--density", "0.05", "--steps", "30", "--servers", "1")
    assert re.search(r"^test accuracy +\d", told, re.M)


def test_nothing_of_this_environment_was_needed(run: Run) -> None:
    assert str(DIST.parent) not in run("python", "-c", "import sys, taihu; print(sys.path, taihu.__file__)")
    assert sys.prefix not in run("python", "-c", "import sys, taihu; print(sys.path)")
