"""The paths of code that determine the rows of a result: benchmarks/results/paths.toml says them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.births.birth import RESULTS

__all__ = ["measured_paths"]


def measured_paths(file: Path = RESULTS / "paths.toml") -> Mapping[str, tuple[str, ...]]:
    """The paths, from the root of the checkout, by the name of each result."""
    table = tomllib.loads(file.read_text())
    groups: Mapping[str, list[str]] = table["groups"]
    return {name: tuple(dict.fromkeys(_paths(named, groups))) for name, named in table["results"].items()}


def _paths(named: Sequence[str], groups: Mapping[str, list[str]]) -> Iterator[str]:
    """Each path, those of a group in the place of `@GROUP`."""
    for each in named:
        if each.startswith("@"):
            yield from _paths(groups[each.removeprefix("@")], groups)
        else:
            yield each
