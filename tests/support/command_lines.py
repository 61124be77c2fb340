"""Command lines of `taihu` that pages show."""

from __future__ import annotations

from typer.core import TyperGroup

from taihu.cli.lazy import LazyCommand
from taihu.cli.main import make_app

__all__ = ["parse"]


def parse(arguments: list[str]) -> None:
    """Parse a command line of `taihu` without running it; raises what Typer raises."""
    group, path, rest = make_app(), ["taihu"], list(arguments)
    while isinstance(group, TyperGroup) and rest and rest[0] in group.commands:
        path.append(rest.pop(0))
        found = group.commands[path[-1]]
        if isinstance(found, LazyCommand):
            found.make_context(" ".join(path), rest)
            return
        assert isinstance(found, TyperGroup)
        group = found
    assert rest, "taihu alone"
    assert set(rest) <= {"--help", "--version", "-h"}, f"{arguments}: no command of taihu"
