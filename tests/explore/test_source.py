"""The explorer replaces the whole source: each name of `core/system/` has a stand-in, or needs none."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from taihu.explore import network
from taihu.explore.disk.modules import DiskStandIns
from taihu.explore.stand_ins.modules import source_modules

SOURCE: Final = "taihu.core.system"
FILES: Final = sorted(each.stem for each in (Path(__file__).parents[2] / "core/system").glob("[!_]*.py"))

# They wait for nothing, draw nothing, and reach nothing outside.
HARMLESS: Final = {
    "chance": {"Random", "is_same_secret", "script_generator", "set_script_generator"},
    "memory": {"is_collecting"},
    "polls": {"HasNumber"},
    "signals": {"Signals"},
    "sockets": {"AddressFamily", "family_of", "inet_ntoa"},
}


def stand_ins() -> dict[str, ModuleType]:
    return source_modules() | network.modules() | DiskStandIns().modules


def works(value: object) -> bool:
    """Whether it does something when it is called: constants and errors do not."""
    return callable(value) and not (isinstance(value, type) and issubclass(value, Exception))


@pytest.mark.parametrize("name", FILES)
def test_each_name_has_a_stand_in_or_needs_none(name: str) -> None:
    real, other = importlib.import_module(f"{SOURCE}.{name}"), stand_ins()[f"{SOURCE}.{name}"]
    same = {each for each in real.__all__ if vars(other)[each] is vars(real)[each]}
    assert {each for each in same if works(vars(real)[each])} == HARMLESS.get(name, set())


@pytest.mark.parametrize("name", FILES)
def test_no_stand_in_has_names_that_the_source_lacks(name: str) -> None:
    real, other = importlib.import_module(f"{SOURCE}.{name}"), stand_ins()[f"{SOURCE}.{name}"]
    assert set(vars(other)) - set(vars(real)) == set()


def test_the_whole_source_is_replaced() -> None:
    replaced = {name.rpartition(".")[2] for name in stand_ins() if name.startswith(SOURCE)}
    assert set(FILES) == replaced
