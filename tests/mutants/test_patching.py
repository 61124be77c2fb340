"""A change is put into functions and constants that others hold already."""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import pytest
from typing_extensions import override

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


NAMES = ("functions", "constants", "absent", "kept")


def text_of(name: str) -> str:
    """The text of a module whose constant no other module has: it is given a new value wherever it is found."""
    return TEXT.replace("LIMIT", f"LIMIT_OF_{name.upper()}")


class Deprecated(ModuleType):
    """A module that warns whoever asks it for more than its dictionary, as deprecated objects of torch do."""

    @override
    def __getattribute__(self, name: str) -> object:
        if name == "__dict__":
            return super().__getattribute__(name)
        raise FutureWarning(name)


class Parts(NamedTuple):
    """A module for each test, and a patcher that was made after them: it looks at every object of this process."""

    modules: dict[str, ModuleType]
    results: Callable[[], object]
    patcher: Patcher


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    folder = tmp_path_factory.mktemp("under_test")
    modules: dict[str, ModuleType] = {}
    for name in NAMES:
        file = folder / f"{name}.py"
        file.write_text(text_of(name))
        spec = importlib.util.spec_from_file_location(f"under_test_{name}", file)
        assert spec
        assert spec.loader
        modules[name] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    results = functools.cache(object)
    results.__module__ = "support.commands"
    gc.freeze()  # a patcher finds what is frozen, too
    sys.modules["deprecated_of_others"] = Deprecated("deprecated_of_others")
    yield Parts(modules, results, Patcher())
    del sys.modules["deprecated_of_others"]
    for made in modules.values():
        del sys.modules[made.__name__]
    gc.freeze()  # as the collection of the tests left it


def test_who_holds_a_function_runs_its_new_code(parts: Parts) -> None:
    module = parts.modules["functions"]
    counter = module.Counter()
    below = counter.below
    assert (counter.half, below(3)) == (1, [])
    path, text = str(module.__file__), text_of("functions")
    parts.patcher.patch_function(path, "Counter.half", text, text.replace("// 2", "* 2"))
    assert counter.half == 6
    parts.patcher.patch_function(path, "Counter.below", text, text.replace("each <", "each <="))
    assert below(3) == [3]


def test_a_constant_changes_wherever_it_was_imported(parts: Parts) -> None:
    module, name = parts.modules["constants"], "LIMIT_OF_CONSTANTS"
    counter = module.Counter()
    assert counter.below(3) == []
    importer = ModuleType("importer")
    vars(importer)[name] = vars(module)[name]
    sys.modules["importer"] = importer
    try:
        changed = text_of("constants").replace(f"{name} = 3", f"{name} = 4")
        parts.patcher.patch_constant(str(module.__file__), name, changed)
        assert (vars(module)[name], vars(importer)[name], counter.below(3)) == (4, 4, [3])
    finally:
        del sys.modules["importer"]


def test_what_is_not_there_cannot_be_patched(parts: Parts) -> None:
    path, text = str(parts.modules["absent"].__file__), text_of("absent")
    with pytest.raises(PatchError, match=r"no function Counter\.third to patch"):
        parts.patcher.patch_function(path, "Counter.third", text, text)
    with pytest.raises(PatchError, match="no constant MOST to patch"):
        parts.patcher.patch_constant(path, "MOST", text)


def test_what_helpers_of_the_tests_keep_stays(parts: Parts) -> None:
    before = parts.results()
    module, name = parts.modules["kept"], "LIMIT_OF_KEPT"
    changed = text_of("kept").replace(f"{name} = 3", f"{name} = 4")
    parts.patcher.patch_constant(str(module.__file__), name, changed)
    assert vars(module)[name] == 4
    assert parts.results() is before
