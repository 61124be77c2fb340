"""Births of rows: who gets which, whatever a run has added, changed or taken away."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.births.adopt import adopted
from benchmarks.births.birth import RESULTS, Birth, after_a_run, births_of, digests, unborn, without
from benchmarks.births.code import is_same_code
from benchmarks.births.judging import judged, shown_results
from benchmarks.births.paths import measured_paths
from benchmarks.births.recorded import named_results

ROOT = Path(__file__).parents[2]
ROWS = st.lists(st.fixed_dictionaries({"way": st.sampled_from("abcd"), "seconds": st.integers(0, 3)}), max_size=6)


def run(name: str) -> Birth:
    return Birth(name, f"commit of {name}", "2026-11-29", "a processor, 2 cores", 0.5, "run")


def text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_a_row_is_born_of_the_run_that_brought_it(states: list[list[dict[str, Any]]]) -> None:
    births: list[Birth] = []
    brought: dict[str, str] = {}
    before: list[dict[str, Any]] = []
    for number, after in enumerate(states):
        births = after_a_run(births, before, after, run(str(number)))
        # What was not there, or was there and went, is new; what stays is of the run that it is of.
        kept = {text(row): brought[text(row)] for row in before if row in after}
        brought = {text(row): kept.get(text(row), str(number)) for row in after}
        before = after
    told = {row: birth.command for birth in births for row in birth.rows}
    assert told == {digests([json.loads(row)])[0]: name for row, name in brought.items()}
    assert not unborn(births, before)
    assert all(birth.rows for birth in births)


def test_layout_and_the_order_of_keys_make_no_row_another() -> None:
    assert digests(json.loads('[{"a": 1, "b": 2}]')) == digests(json.loads('[\n {"b": 2,\n  "a": 1}]'))
    assert digests({"a": 1}) != digests({"a": 2})


def test_rows_are_taken_out_of_lists_and_tables() -> None:
    rows = [{"way": "a"}, {"way": "b"}]
    assert without(rows, digests(rows)[:1]) == [{"way": "b"}]
    table = {"one": 1, "two": 2}
    assert without(table, digests(table)[1:]) == {"one": 1}


def test_rows_without_a_birth_get_that_of_the_first_commit_that_has_them() -> None:
    first, both = b'[{"way": "a"}]', b'[{"way": "a"}, {"way": "b"}]'
    versions = [("c1", "2026-11-20", b"broken"), ("c2", "2026-11-21", first), ("c3", "2026-11-22", both)]
    births = adopted([], json.loads(both), versions, "unknown", "unknown")
    assert [(birth.commit, birth.date, birth.told_by, len(birth.rows)) for birth in births] == [
        ("c2", "2026-11-21", "history", 1),
        ("c3", "2026-11-22", "history", 1),
    ]
    assert not adopted(births, json.loads(both), versions, "unknown", "unknown")


BEFORE = b'"""Words."""\nimport os\n\n\ndef f(a):\n    """More."""\n    return a + 1  # why\n'


@pytest.mark.parametrize(
    ("name", "now", "same"),
    [
        ("a.py", b'"""Other words."""\nimport os\ndef f(a):\n    """Less."""\n\n    return (a\n    + 1)\n', True),
        ("a.py", BEFORE.replace(b"+ 1", b"+ 2"), False),
        ("a.py", BEFORE.replace(b"import os", b"import sys"), False),
        ("a.py", BEFORE.replace(b'    """More."""\n', b""), True),
        ("a.py", None, False),
        ("a.toml", BEFORE.replace(b"# why", b"# because"), False),
        ("a.toml", BEFORE, True),
    ],
)
def test_words_about_code_are_no_code(name: str, now: bytes | None, *, same: bool) -> None:
    assert is_same_code(name, BEFORE, now) is same
    assert is_same_code(name, now, BEFORE) is same


class OneHistory:
    """A history of two commits, behind the first of which one file has changed."""

    def has(self, commit: str) -> bool:
        return commit in {"first", "second"}

    def changed(self, commit: str, paths: Sequence[str]) -> list[str]:
        return [name for name in ("core/a.py",) if commit == "first" and any(name.startswith(path) for path in paths)]

    def commits_since(self, commit: str, paths: Sequence[str]) -> int:
        return 1


@pytest.mark.parametrize(
    ("commit", "paths", "uncommitted", "why"),
    [
        ("first", ("core",), (), "core/a.py has changed, and maybe more (1 commit since)"),
        ("first", ("worker",), (), None),
        ("second", ("core",), (), None),
        ("second", ("core",), ("core/a.py",), "measured with changes that no commit has: core/a.py"),
        ("third", ("core",), (), "commit third is not in the history"),
        ("unknown", ("core",), (), "commit unknown is not in the history"),
    ],
)
def test_a_row_is_stale_for_one_reason(
    commit: str, paths: tuple[str, ...], uncommitted: tuple[str, ...], why: str | None
) -> None:
    birth = Birth("c", commit, "2026-11-29", "p", 0.0, "run", uncommitted, ("row",))
    assert [each.why for each in judged([birth], paths, OneHistory())] == ([] if why is None else [why])


def test_a_page_shows_the_rows_of_the_benchmarks_that_it_names(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("| 1 s | `python -m benchmarks torch` |\n`python -m benchmarks`\n")
    births = {
        "loops": [run("python -m benchmarks torch --json x")],
        "curves": [run("python -m benchmarks torch_curves")],
    }
    assert shown_results([page], births) == {"loops": ["README.md"]}


def test_a_command_may_write_the_results_that_it_names(tmp_path: Path) -> None:
    words = shlex.split(
        f"c --json {tmp_path}/a.json --trace={tmp_path}/b.json --other /tmp/c.json --json {tmp_path}/a.json"
    )
    assert named_results(words, tmp_path) == [tmp_path / "a.json", tmp_path / "b.json"]


def test_every_result_has_paths_that_exist_and_every_row_a_birth() -> None:
    results = {path.stem: path for path in RESULTS.glob("*.json")}
    paths = measured_paths()
    assert set(paths) == set(results)
    assert not [path for of_result in paths.values() for path in of_result if not (ROOT / path).exists()]
    assert not [name for name, path in results.items() if unborn(births_of(path), json.loads(path.read_text()))]
    assert {path.name for path in (RESULTS / "births").glob("*.json")} == {path.name for path in results.values()}
