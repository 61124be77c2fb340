"""The results of a run count in the next one, for as long as what they stand on is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutants.results import Fate, Results, Verdict

TESTS, SCENARIOS = ("test_a.py", "test_b.py"), ("steps.txt",)
FILES = (*TESTS, *SCENARIOS)
BY = ("test_a.py::test_one", "test_a.py::test_two[3]", "test_b.py::test_one")

verdicts = st.builds(Verdict, st.sampled_from([Fate.NOTICED, Fate.ENDLESS, Fate.SURVIVED]), st.sampled_from(BY))
judgements = st.tuples(st.sampled_from("xyz"), verdicts)
edits = st.tuples(st.sampled_from(FILES), st.integers(0, 2))


def write(root: Path, contents: Mapping[str, int]) -> None:
    for name, content in contents.items():
        (root / name).write_text(f"{content}\n")


def opened(root: Path, *, afresh: bool = False) -> Results:
    return Results(root / "build" / "core.jsonl", root, TESTS, SCENARIOS, afresh=afresh)


def stands(verdict: Verdict, then: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether a verdict that was given then counts now: a test's own file is enough for what it noticed."""
    of = [verdict.by.partition("::")[0]] if verdict.fate.is_noticed else FILES
    return all(then[name] == now[name] for name in of)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.one_of(judgements, edits), max_size=6), max_size=5))
def test_the_last_verdict_counts_while_its_files_stay(runs: list[list[tuple[str, Verdict | int]]]) -> None:
    contents = dict.fromkeys(FILES, 0)
    last: dict[str, tuple[Verdict, dict[str, int]]] = {}
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for run in runs:
            write(root, contents)
            results, begun = opened(root), dict(contents)
            for key in "xyz":
                expected = last[key][0] if key in last and stands(*last[key], contents) else None
                assert results.known(key) == expected
            for name, what in run:
                if isinstance(what, Verdict):
                    results.add(name, what)
                    assert results.known(name) == what
                    last[name] = (what, begun)
                else:
                    contents[name] = what


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, dict.fromkeys(FILES, 0))
    return tmp_path


def test_what_is_begun_afresh_knows_nothing(root: Path) -> None:
    opened(root).add("x", Verdict(Fate.NOTICED, BY[0]))
    assert opened(root, afresh=True).known("x") is None
    assert opened(root).known("x") is None


def test_a_test_that_is_gone_noticed_nothing(root: Path) -> None:
    opened(root).add("x", Verdict(Fate.NOTICED, BY[2]))
    kept = Results(root / "build" / "core.jsonl", root, TESTS[:1], SCENARIOS)
    assert kept.known("x") is None


@pytest.mark.parametrize("fate", Fate)
def test_every_fate_is_read_as_it_was_written(root: Path, fate: Fate) -> None:
    given = Verdict(fate, "" if fate is Fate.UNREACHED else BY[1])
    opened(root).add("x", given)
    assert opened(root).known("x") == given


def test_a_mutant_is_noticed_by_a_test_that_fails_or_does_not_end() -> None:
    assert {fate for fate in Fate if fate.is_noticed} == {Fate.NOTICED, Fate.ENDLESS, Fate.WAITING}
