"""Benchmarks are found by their names, whatever room they are in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main, runs

ROOT = Path(__file__).parents[1]


def test_without_a_name_all_are_told_of_by_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    assert all(f"\n  {name} " in told for name in runs())
    assert {"recovery:", "exchange:", "pytorch:"} <= set(told.split())


def test_a_name_that_is_none_is_an_error_that_tells_what_may_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torch_curve"]) == 2
    assert capsys.readouterr().err == ("error: torch_curve: no benchmark of that name; did you mean torch_curves?\n")


def test_no_two_have_one_name() -> None:
    found = [*(ROOT / "benchmarks").glob("*/*.py")]
    names = [path.stem for path in found if path.stem != "__init__"]
    assert sorted(names) == sorted(set(names))


def test_one_is_run_as_its_module_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "explored_mutants", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("usage: python -m benchmarks explored_mutants [-h]")
