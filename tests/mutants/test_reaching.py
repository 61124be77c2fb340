"""Recordings say which lines each test ran, and hold until something that they were made from is edited."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mutants.reaching import Recording, Seen

CORE = """\
def half(value):
    if value % 2:
        return None
    return value // 2

def steps(value):
    count = 0
    while value is not None:
        value = half(value) if value else None
        count += 1
    return count
"""
BESIDE = "def other():\n    return 1\n"
FILES, SCENARIOS, TESTS = ("core.py",), ("words.txt",), ("test_a.py", "test_b.py")
ODD, EVEN, STRANGE = "test_a.py::test_odd", "test_a.py::test_even[8]", "test_b.py::test_other"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    texts = {"core.py": CORE, "beside.py": BESIDE, "words.txt": "one", "test_a.py": "a", "test_b.py": "b"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def opened(root: Path) -> Recording:
    return Recording(root / "build" / "lines.json", root, FILES, SCENARIOS, TESTS)


def record(recording: Recording, tests: dict[str, Callable[[], None]]) -> None:
    with recording.recording() as run:
        for name, test in tests.items():
            run(name, test)


def callables(root: Path) -> dict[str, Callable[[], None]]:
    core, beside = loaded(root / "core.py"), loaded(root / "beside.py")
    return {ODD: lambda: core.half(3), EVEN: lambda: core.steps(2), STRANGE: beside.other}


def ran(recording: Recording) -> dict[str, dict[str, set[int]]]:
    return {name: {file: set(lines) for file, lines in seen.lines.items()} for name, seen in recording.seen.items()}


EXPECTED: dict[str, dict[str, set[int]]] = {
    ODD: {"core.py": {2, 3}},
    EVEN: {"core.py": {2, 3, 4, 7, 8, 9, 10, 11}},
    STRANGE: {},
}


def test_each_test_has_the_lines_of_the_core_that_it_ran(root: Path) -> None:
    recording, before = opened(root), sys.gettrace()
    record(recording, callables(root))
    assert ran(recording) == EXPECTED
    assert all(0.0 <= seen.seconds < 60.0 for seen in recording.seen.values())
    assert sys.gettrace() is before


def test_a_recording_is_read_as_it_was_written(root: Path) -> None:
    recording = opened(root)
    record(recording, callables(root))
    recording.save()
    assert opened(root).seen == recording.seen


@pytest.mark.parametrize(
    ("edited", "left"),
    [
        ("core.py", set()),
        ("words.txt", set()),
        ("test_a.py", {STRANGE}),
        ("test_b.py", {ODD, EVEN}),
        ("beside.py", {ODD, EVEN, STRANGE}),
    ],
)
def test_an_edit_forgets_what_it_concerns(root: Path, edited: str, left: set[str]) -> None:
    recording = opened(root)
    record(recording, callables(root))
    recording.save()
    with (root / edited).open("a") as file:
        file.write("\n")
    assert ran(opened(root)) == {name: EXPECTED[name] for name in left}


def test_what_is_recorded_later_is_added(root: Path) -> None:
    tests = callables(root)
    recording = opened(root)
    record(recording, {ODD: tests[ODD]})
    record(recording, {EVEN: tests[EVEN]})
    assert ran(recording) == {name: EXPECTED[name] for name in (ODD, EVEN)}


def test_a_recording_that_is_broken_off_traces_nothing_any_more(root: Path) -> None:
    recording, before = opened(root), sys.gettrace()

    def broken() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(recording, {ODD: broken})
    assert sys.gettrace() is before
    assert recording.seen == {}


def test_a_test_reaches_what_any_of_its_lines_is_in() -> None:
    seen = Seen(0.1, {"core.py": [2, 3, 9]})
    reached = [seen.reaches("core.py", range(first, last + 1)) for first, last in ((1, 1), (1, 2), (4, 8), (9, 20))]
    assert reached == [False, True, False, True]
    assert seen.reaches("core.py", None)
    assert not seen.reaches("beside.py", range(1, 20))
    assert not seen.reaches("beside.py", None)
    assert not Seen(0.1, {"core.py": []}).reaches("core.py", None)
