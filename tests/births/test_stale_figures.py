"""`python -m benchmarks stale` in a checkout of its own, with a benchmark, code that it measures, and a README."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = '''"""A row of a sum."""
import json, sys
from pathlib import Path
from measured.sum import total

def main():
    Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps([{"total": total()}]))

if __name__ == "__main__":
    main()
'''
CODE = '"""A sum."""\n\n\ndef total():\n    return 1 + 1\n'
RESULT = "benchmarks/results/tiny.json"
MEASURE = ("tiny", "--json", RESULT)


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)  # noqa: S607


def commit(folder: Path, subject: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", subject)


def benchmarks(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose one figure was measured with its code, all of which is committed."""
    folder = tmp_path / "checkout"
    files = {
        "measured/sum.py": CODE,
        "benchmarks/room/__init__.py": '"""A room."""\n',
        "benchmarks/room/tiny.py": BENCHMARK,
        "benchmarks/results/paths.toml": '[groups]\nsums = ["measured"]\n[results]\ntiny = ["@sums"]\n',
        "README.md": "| 2 | `python -m benchmarks tiny` |\n",
        ".gitignore": "__pycache__\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("__init__.py", "__main__.py", "births", "base/__init__.py", "base/rows.py"):
        source, place = ROOT / "benchmarks" / name, folder / "benchmarks" / name
        place.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place)
    git(folder, "init", "-q")
    commit(folder, "code")
    assert benchmarks(folder, *MEASURE).returncode == 0
    commit(folder, "rows")
    return folder


def test_a_run_writes_the_birth_of_its_rows(checkout: Path) -> None:
    (birth,) = json.loads((checkout / "benchmarks/results/births/tiny.json").read_text())
    assert birth["command"] == f"python -m benchmarks tiny --json {RESULT}"
    assert birth["told_by"] == "run"
    assert birth["uncommitted"] == []
    assert len(birth["rows"]) == 1
    assert birth["processor"].endswith(" cores")
    assert isinstance(birth["load"], float)


def test_a_figure_whose_code_was_changed_on_purpose_is_found_and_no_other(checkout: Path) -> None:
    fresh = benchmarks(checkout, "stale", "--fail")
    assert (fresh.returncode, fresh.stdout) == (
        0,
        "0 of 1 results were measured with other code than today's, 0 that README.md shows.\n",
    )
    code = checkout / "measured" / "sum.py"
    code.write_text(CODE.replace("A sum.", "The sum of two numbers.") + "# nothing more\n")
    commit(checkout, "words")
    assert benchmarks(checkout, "stale", "--fail").stdout == fresh.stdout
    code.write_text(CODE.replace("1 + 1", "1 + 1 + 0"))
    for since in ("1 commit since", "2 commits since"):
        told = benchmarks(checkout, "stale", "--fail")
        assert told.returncode == 1
        assert "tiny, on README.md: 1 of 1 rows, from 2" in told.stdout
        assert f"measured/sum.py has changed, and maybe more ({since})" in told.stdout
        assert f"    python -m benchmarks tiny --json {RESULT}\n" in told.stdout
        assert told.stderr == "error: stale figures on README.md, docs/index.md: tiny\n"
        commit(checkout, "code that a figure is of")
    assert benchmarks(checkout, "stale").returncode == 0


def test_what_no_front_page_shows_is_listed_and_fails_nobody(checkout: Path) -> None:
    (checkout / "README.md").write_text("no figures\n")
    (checkout / "measured" / "sum.py").write_text(CODE.replace("1 + 1", "3"))
    told = benchmarks(checkout, "stale", "--fail")
    assert told.returncode == 0
    assert told.stdout.startswith("tiny: 1 of 1 rows, from ")
    assert "measured/sum.py has changed, and maybe more (not committed)" in told.stdout


def test_stale_rows_are_dropped_and_measured_anew(checkout: Path) -> None:
    (checkout / "measured" / "sum.py").write_text(CODE.replace("1 + 1", "3"))
    commit(checkout, "code")
    assert benchmarks(checkout, "stale", "--drop", "tiny").stdout == "tiny: 1 rows dropped\n"
    assert json.loads((checkout / RESULT).read_text()) == []
    assert benchmarks(checkout, *MEASURE).returncode == 0
    assert benchmarks(checkout, "stale", "--fail").returncode == 0


def test_rows_of_code_that_no_commit_has_are_stale(checkout: Path) -> None:
    (checkout / "measured" / "sum.py").write_text(CODE.replace("1 + 1", "3"))
    assert benchmarks(checkout, *MEASURE).returncode == 0
    commit(checkout, "code and rows")
    told = benchmarks(checkout, "stale", "--fail")
    assert told.returncode == 1
    assert "measured with changes that no commit has: measured/sum.py" in told.stdout


def test_rows_that_somebody_writes_by_hand_have_no_birth_until_history_tells_of_them(checkout: Path) -> None:
    (checkout / RESULT).write_text('[{"total": 7}]')
    told = benchmarks(checkout, "stale", "--fail")
    assert told.returncode == 1
    assert told.stdout.startswith("tiny: rows without a birth")
    assert benchmarks(checkout, "adopt").stdout == "tiny: 1 rows are in no commit yet\n"
    commit(checkout, "rows by hand")
    assert benchmarks(checkout, "adopt").returncode == 0
    births = json.loads((checkout / "benchmarks/results/births/tiny.json").read_text())
    assert "history" in {birth["told_by"] for birth in births}


def test_a_command_that_is_no_benchmark_is_recorded_with_its_exit_code(checkout: Path) -> None:
    write = f"open({RESULT!r}, 'w').write('[5]'); raise SystemExit(3)"
    assert benchmarks(checkout, "record", sys.executable, "-c", write, RESULT).returncode == 3
    (birth,) = json.loads((checkout / "benchmarks/results/births/tiny.json").read_text())
    assert "SystemExit" in birth["command"]


def test_a_result_whose_paths_nobody_has_said_is_not_measured(checkout: Path) -> None:
    done = benchmarks(checkout, "tiny", "--json", "benchmarks/results/new.json")
    assert done.returncode == 1
    assert done.stderr == "error: new: benchmarks/results/paths.toml does not say which paths it measures\n"
    assert not (checkout / "benchmarks/results/new.json").exists()


@pytest.mark.parametrize("lack", ["shallow", "none"])
def test_without_the_history_the_check_says_so_and_fails_nobody(checkout: Path, tmp_path: Path, lack: str) -> None:
    (checkout / "measured" / "sum.py").write_text(CODE.replace("1 + 1", "3"))
    commit(checkout, "code")
    place = tmp_path / "other"
    if lack == "shallow":
        git(tmp_path, "clone", "-q", "--depth", "1", checkout.as_uri(), str(place))
    else:
        shutil.copytree(checkout, place, ignore=shutil.ignore_patterns(".git"))
    told = benchmarks(place, "stale", "--fail")
    why = {"shallow": "the history of this checkout is shallow", "none": "this is no checkout of git"}[lack]
    assert (told.returncode, told.stdout) == (0, f"Figures were not compared with the code: {why}.\n")
