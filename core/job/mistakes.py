"""Mistakes in a job, each told in one line: the key, what was expected, what was given, and the remedy."""

from __future__ import annotations

import difflib
from types import MappingProxyType
from typing import Any, Final, get_args

from pydantic import ValidationError

from taihu.core.base.words import one_line
from taihu.core.job.job import Job, setting_keys
from taihu.core.job.toml import parse_value
from taihu.core.settings import Section
from taihu.core.settings.words import expected, expected_of, written

RENAMED: Final = MappingProxyType(
    {
        "train.checkpoint": "train.recompute",
        "train.checkpoint_segments": "train.recompute_segments",
        "run.events": "run.loggers",
    }
)
"""Keys that jobs had once, and their names now."""


def mistake(error: ValidationError, source: str) -> str:
    """The first mistake that `error` holds, in the job from `source`."""
    return one_line(_describe(error, source))


def new_name(key: str) -> str:
    """The name and values, in words, of one of `RENAMED` now."""
    name = RENAMED[key]
    return f"it is {name} now, which takes {expected(setting_keys()[name])}"


def _describe(error: ValidationError, source: str) -> str:
    first = error.errors(include_url=False)[0]
    where = one_line(".".join(map(str, first["loc"])))
    if first["type"] == "extra_forbidden":
        return f"{source}: unknown key {where}{_hint(where, first['loc'])}"
    place = _without_alternative(first["loc"])
    where = one_line(".".join(map(str, place)))
    prefix = f"{source}: {where}: " if where else f"{source}: "
    if first["type"] == "value_error":
        return f"{prefix}{first['msg'].removeprefix('Value error, ')}"
    wanted = _wanted(place)
    return f"{prefix}expected {wanted}, got {written(first['input'])}{_remedy(where, wanted, first['input'])}"


def _without_alternative(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The location of a value; of a key that takes one thing or another, pydantic says which it has tried."""
    table: Any = Job
    for depth, part in enumerate(location):
        if not (isinstance(table, type) and issubclass(table, Section | Job)):
            return location[:depth] if isinstance(part, str) else location
        table = table.model_fields[str(part)].annotation
    return location


def _wanted(location: tuple[int | str, ...]) -> str:
    """The values that the key at `location` takes, or one value of its list."""
    field = Job.model_fields[str(location[0])]
    for part in location[1:]:
        table = field.annotation
        if isinstance(part, int) or not (isinstance(table, type) and issubclass(table, Section)):
            return expected_of(get_args(table)[0])
        field = table.model_fields[part]
    return expected(field)


def _remedy(key: str, wanted: str, given: object) -> str:
    """The right way to write a value that only looks right."""
    if isinstance(given, str) and wanted.startswith(("an integer", "a number", "a boolean")):
        value = parse_value(given)
        return "" if isinstance(value, str) else f"; write it without quotes: {key} = {given.strip()}"
    if isinstance(given, float) and wanted.startswith("an integer") and given.is_integer():
        return f"; write it without a point: {key} = {int(given)}"
    if isinstance(given, int | float) and "string" in wanted:
        return f'; write it in quotes: {key} = "{written(given)}"'
    return ""


def _hint(key: str, location: tuple[int | str, ...]) -> str:
    """The new name of the unknown `key`, or the nearest one; a right one in the wrong section is found too."""
    if key in RENAMED:
        return f"; {new_name(key)}"
    wrong = str(location[-1])
    everywhere = list(setting_keys())
    home = (
        [key for key in everywhere if key.startswith(f"{location[0]}.")] if len(location) > 1 else [*Job.model_fields]
    )
    exact = [key for key in everywhere if key.rpartition(".")[2] == wrong]
    full = ".".join(map(str, location))
    near = exact or difflib.get_close_matches(full, home, n=1) or difflib.get_close_matches(full, everywhere, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(home)}"
