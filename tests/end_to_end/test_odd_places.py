"""Commands where a machine is not as it should be: a few of the places of `inputs.odd_places`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks.inputs.odd_places import PLACES, Place, problem_of, run_place

SAMPLE: Final = (
    "files of 8 KiB",
    "a run whose reader has gone",
    "a run without streams",
    "version to nowhere",
    "NUMBA_DISABLE_JIT",
    "WORLD_SIZE alone",
    "a folder that is gone",
)


@pytest.mark.parametrize("place", [each for each in PLACES if each.name in SAMPLE], ids=lambda place: place.name)
def test_a_command_runs_or_says_why_in_a_line(place: Place, tmp_path: Path) -> None:
    assert problem_of(place, *run_place(place, tmp_path)) == ""


def test_all_places_of_the_sample_are_there() -> None:
    assert {each.name for each in PLACES} >= set(SAMPLE)
    assert len({each.name for each in PLACES}) == len(PLACES)


@pytest.mark.parametrize(
    ("code", "out", "err", "problem"),
    [
        (1, "", "error: cannot write a: full\n", ""),
        (None, "", "", "it does not end"),
        (1, "Traceback (most recent call last):", "error: cannot write a: full\n", "a traceback"),
        (0, "", "error: cannot write a: full\n", "exit code 0, expected 1"),
        (1, "", "error: something\n", "expected 'cannot write a'"),
        (1, "", "error: x\nerror: cannot write a: full\n", "2 lines of errors"),
    ],
)
def test_what_is_wrong_in_a_place_is_said(code: int | None, out: str, err: str, problem: str) -> None:
    assert problem_of(Place("a", "command", 1, "cannot write a"), code, out, err) == problem
