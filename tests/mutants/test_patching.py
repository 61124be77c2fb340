"""A change is put into functions and constants that others hold already."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mutants.patching import Patcher, PatchError

TEXT = '''
"""A module under test."""
import functools

LIMIT = 3

class Counter:
    @property
    def half(self):
        return LIMIT // 2

    @functools.cache
    def below(self, value):
        return [each for each in (value,) if each < LIMIT]
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "under_test.py"
    file.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("under_test", file)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules["under_test"] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules["under_test"]


def test_who_holds_a_function_runs_its_new_code(module: ModuleType) -> None:
    counter = module.Counter()
    below = counter.below
    assert (counter.half, below(3)) == (1, [])
    path = str(module.__file__)
    Patcher().patch_function(path, "Counter.half", TEXT, TEXT.replace("// 2", "* 2"))
    assert counter.half == 6
    Patcher().patch_function(path, "Counter.below", TEXT, TEXT.replace("each <", "each <="))
    assert below(3) == [3]


def test_a_constant_changes_wherever_it_was_imported(module: ModuleType) -> None:
    counter = module.Counter()
    assert counter.below(3) == []
    importer = ModuleType("importer")
    vars(importer)["LIMIT"] = module.LIMIT
    sys.modules["importer"] = importer
    try:
        Patcher().patch_constant(str(module.__file__), "LIMIT", TEXT.replace("LIMIT = 3", "LIMIT = 4"))
        assert (module.LIMIT, vars(importer)["LIMIT"], counter.below(3)) == (4, 4, [3])
    finally:
        del sys.modules["importer"]


def test_what_is_not_there_cannot_be_patched(module: ModuleType) -> None:
    path = str(module.__file__)
    with pytest.raises(PatchError, match=r"no function Counter\.third to patch"):
        Patcher().patch_function(path, "Counter.third", TEXT, TEXT)
    with pytest.raises(PatchError, match="no constant MOST to patch"):
        Patcher().patch_constant(path, "MOST", TEXT)


def test_what_helpers_of_the_tests_keep_stays(module: ModuleType) -> None:
    kept = functools.cache(object)
    kept.__module__ = "support.commands"
    before = kept()
    Patcher().patch_constant(str(module.__file__), "LIMIT", TEXT.replace("LIMIT = 3", "LIMIT = 4"))
    assert kept() is before
