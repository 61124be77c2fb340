"""The packages have short names: another distribution in the place of one is noticed before anything runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from taihu.job.environment import without_settings
from taihu.process.guard import (
    PACKAGES,
    check_surroundings,
    foreign_packages,
    leave_starting_folder,
    taken_names,
)

ROOT = Path(__file__).parents[2]
OURS = [name for name in PACKAGES if name != "taihu"]


def python(path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in `path`, which lies before everything that is installed, unless PYTHONPATH is given."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=path,
        env={**os.environ, "PYTHONPATH": str(path), **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def spoil(folder: Path, *names: str) -> None:
    """Files of these names that leave a mark, NAME.ran, when they are executed."""
    for name in names:
        (folder / f"{name}.py").write_text("from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n")


def package(name: str, distribution: str | None) -> ModuleType:
    module = ModuleType(name)
    if distribution is not None:
        module.__dict__["__distribution__"] = distribution
    return module


def test_an_installation_of_our_own_passes(tmp_path: Path) -> None:
    done = python(tmp_path, "-c", "from taihu.process.guard import check_installation; check_installation()")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("owner", [None, "huggingface-kernels"])
@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_does_not_say_it_is_ours_is_foreign(name: str, owner: str | None) -> None:
    ours = {each: package(each, "taihu") for each in PACKAGES}
    assert foreign_packages(ours) == []
    assert foreign_packages({**ours, name: package(name, owner)}) == [name]


@pytest.mark.parametrize(
    ("module", "name"), [*(("taihu", name) for name in OURS), ("worker", "kernels"), ("ps_server", "kernels")]
)
def test_the_command_names_what_pythonpath_puts_in_the_place_of_a_package(
    tmp_path: Path, module: str, name: str
) -> None:
    spoil(tmp_path, name)
    done = python(tmp_path, "-m", module, "--help")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: PYTHONPATH puts {name} ({tmp_path / name}.py) in the place of taihu's own; take that folder out of "
        "PYTHONPATH\n"
    )
    assert not list(tmp_path.glob("*.ran"))


def test_another_distribution_in_the_same_environment_is_named(tmp_path: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*_pb2*"))
    (tmp_path / "kernels" / "__init__.py").write_text("")
    (tmp_path / "protos" / "__init__.py").write_text("")
    done = python(tmp_path, "-P", "-m", "taihu", "--help", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    places = f"protos ({tmp_path}/protos/__init__.py), kernels ({tmp_path}/kernels/__init__.py)"
    assert places in done.stderr


@pytest.mark.parametrize("module", ["taihu", "worker", "ps_server"])
def test_files_in_the_current_folder_are_not_executed(tmp_path: Path, module: str) -> None:
    spoil(tmp_path, *(name for name in (*OURS, "typer", "numpy", "rich") if name != module))
    done = python(tmp_path, "-m", module, "--help", PYTHONPATH="")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("*.ran"))


def test_a_run_in_a_folder_of_such_names_executes_none_of_them(tmp_path: Path) -> None:
    spoil(tmp_path, *PACKAGES, "typer", "numpy", "grpc", "json")
    (tmp_path / "protos").mkdir()
    (tmp_path / "mine.py").write_text(
        "import helper\nfrom worker.engine import Flatten, Linear, Sequential\n"
        "def build(shape, outputs):\n    return Sequential([Flatten(), Linear(helper.WIDTH), Linear(outputs)])\n"
    )
    (tmp_path / "helper.py").write_text("WIDTH = 7\n")
    arguments = ("--model", "mine.py:build", "--steps", "2", "--servers", "1", "--workers", "1")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("taihu")), "train", *arguments],
        cwd=tmp_path,
        env=without_settings(os.environ),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "done in" in done.stdout
    assert not list(tmp_path.glob("*.ran"))


def test_the_current_folder_stays_where_taihu_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "script")])
    for first, rest in ((str(tmp_path), []), (str(ROOT), [str(ROOT)]), ("/other", ["/other"])):
        path = [first]
        monkeypatch.chdir(ROOT if first == str(ROOT) else tmp_path)
        leave_starting_folder(path)
        assert path == rest
    empty: list[str] = []
    leave_starting_folder(empty)
    assert not empty


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT is set, and kernels are compiled or nothing; unset it"),
        ("NUMBA_NUM_THREADS", "0", "NUMBA_NUM_THREADS: expected a number of threads from 1, got '0'; unset it"),
        ("NUMBA_NUM_THREADS", "-1", "NUMBA_NUM_THREADS: expected a number of threads from 1, got '-1'; unset it"),
        ("NUMBA_NUM_THREADS", "x", "NUMBA_NUM_THREADS: expected a number of threads from 1, got 'x'; unset it"),
    ],
)
def test_variables_that_numba_would_fail_by_are_named(variable: str, value: str, told: str) -> None:
    with pytest.raises(SystemExit, match=f"error: {told}"):
        check_surroundings({variable: value})


def test_variables_that_numba_takes_are_no_matter(tmp_path: Path) -> None:
    check_surroundings({"NUMBA_DISABLE_JIT": "0", "NUMBA_NUM_THREADS": " 4 "})
    check_surroundings({"NUMBA_DISABLE_JIT": ""})
    done = python(tmp_path, "-c", "import kernels.reduce", NUMBA_DISABLE_JIT="1")
    assert done.stderr.splitlines()[-1] == (
        "ImportError: NUMBA_DISABLE_JIT is set, and kernels are compiled or nothing; unset it"
    )


def test_a_current_folder_that_is_gone_is_said_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os; os.rmdir({str(gone)!r}); from taihu.__main__ import main; main()"
    done = python(gone, "-P", "-c", program)
    told = "error: the current folder: No such file or directory; change to one that is there\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_a_name_that_a_script_has_taken_is_told(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("X = 1")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").touch()
    (tmp_path / "allreduce.txt").touch()
    assert taken_names(tmp_path) == [tmp_path / "kernels" / "__init__.py", tmp_path / "worker.py"]
    assert taken_names(ROOT) == []
    program = "from taihu.process.guard import refuse_taken_names; refuse_taken_names()"
    done = python(tmp_path, "-c", program)
    told = f"ImportError: {tmp_path}/kernels: taihu has a package kernels; give this one another name"
    assert done.stderr.splitlines()[-1] == told
    done = python(tmp_path.parent, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["taihu version", "worker --rank 0", "ps_server"])
def test_too_few_files_are_said_in_one_line_by_every_command(command: str) -> None:
    begun = f"ulimit -n 10; exec '{sys.executable}' -P -m {command}"
    done = subprocess.run(["/bin/sh", "-c", begun], capture_output=True, text=True, timeout=600, check=False)
    told = "error: this process may open 10 files, expected at least 64; ulimit -n 1024 raises that\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
