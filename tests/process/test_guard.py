"""The surroundings of a command: files beside it are not executed, and what would fail is said in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taihu.core.job.environment import without_settings
from taihu.core.process.programs.guard import check_surroundings, file_in_the_way, leave_starting_folder

ROOT = Path(__file__).parents[2]
# Names that files beside a script may have: they are none of taihu's at the top.
COMMON = ("worker", "kernels", "protos", "allreduce", "ps_server", "core")


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


@pytest.mark.parametrize("module", ["taihu", "taihu.worker", "taihu.ps_server"])
def test_files_in_the_current_folder_are_not_executed(tmp_path: Path, module: str) -> None:
    spoil(tmp_path, *COMMON, "typer", "numpy", "rich")
    done = python(tmp_path, "-m", module, "--help", PYTHONPATH="")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("*.ran"))


def test_files_beside_a_users_model_stand_in_no_place_of_others_and_may_have_names_of_our_folders(
    tmp_path: Path,
) -> None:
    spoil(tmp_path, "taihu", "typer", "numpy", "grpc", "json")
    (tmp_path / "mine.py").write_text(
        "import kernels, worker\nfrom taihu.engine import Flatten, Linear, Sequential\n"
        "def build(shape, outputs):\n"
        "    return Sequential([Flatten(), Linear(kernels.WIDTH), Linear(worker.WIDTH), Linear(outputs)])\n"
    )
    (tmp_path / "worker.py").write_text("WIDTH = 7\n")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("WIDTH = 5\n")
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
    done = python(tmp_path, "-c", "import taihu.kernels.reduce", NUMBA_DISABLE_JIT="1")
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


@pytest.mark.parametrize("name", ["taihu.py", "taihu/__init__.py"])
def test_a_script_beside_a_file_of_taihus_name_is_refused(tmp_path: Path, name: str) -> None:
    for other in COMMON:
        (tmp_path / f"{other}.py").touch()
    (tmp_path / "script.py").write_text("import taihu.torch")
    assert file_in_the_way(tmp_path) is None
    assert file_in_the_way(ROOT) is None
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert file_in_the_way(tmp_path) == tmp_path / name
    done = python(tmp_path, "-P", "-m", "taihu", "run", "--workers", "1", "script.py", PYTHONPATH="")
    assert done.returncode == 2
    told = f"error: {name}: a script beside it imports that in the place of taihu; give it another name"
    assert done.stderr.splitlines()[-1] == told


@pytest.mark.parametrize("command", ["taihu --version", "taihu.worker --rank 0", "taihu.ps_server"])
def test_too_few_files_are_said_in_one_line_by_every_command(command: str) -> None:
    begun = f"ulimit -n 10; exec '{sys.executable}' -P -m {command}"
    done = subprocess.run(["/bin/sh", "-c", begun], capture_output=True, text=True, timeout=600, check=False)
    told = "error: this process may open 10 files, expected at least 64; ulimit -n 1024 raises that\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
