"""`taihu example`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import make_folder, write_bytes
from taihu.core.base.words import aligned, one_line

_EXAMPLES: Final = Path(__file__).parents[1] / "examples"


class _Example(NamedTuple):
    """Files below the folder of examples that go together, the packages that they need, and how they are run."""

    says: str
    files: Sequence[str]
    run: Sequence[str]
    extras: Sequence[str] = ()
    packages: Sequence[str] = ()


def example(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The example; all are listed without.")] = None,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="The folder to write to.")] = Path(),
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Write the files of an example into a folder, and tell how it is run; or list all examples.

    \b
    Examples:
      taihu example
      taihu example torch
      taihu example own-model --into mine
    """  # noqa: D301
    examples = _examples()
    if name is None:
        for line in aligned([(each, made.says) for each, made in examples.items()]):
            typer.echo(line)
        return
    chosen = _chosen(examples, name)
    contents = {into / Path(file).name: (_EXAMPLES / file).read_bytes() for file in chosen.files}
    changed = {path: content for path, content in contents.items() if _differs(path, content)}
    there = [path for path in changed if path.exists()]
    if there and not force:
        raise ConfigError(
            f"{there[0]}: expected no such file, or the example's; --force writes over it, --into names another place"
        )
    make_folder(into)
    for path, content in changed.items():
        write_bytes(path, content)
    for line in _told(chosen, into, contents):
        typer.echo(line)


def _examples() -> Mapping[str, _Example]:
    table = tomllib.loads((_EXAMPLES / "examples.toml").read_text())
    return {name: _Example(**entry) for name, entry in table.items()}


def _chosen(examples: Mapping[str, _Example], name: str) -> _Example:
    if name not in examples:
        near = difflib.get_close_matches(name, examples, 1)
        meant = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(examples)}"
        raise ConfigError(f"{one_line(name)}: no example has that name; {meant}")
    return examples[name]


def _differs(path: Path, content: bytes) -> bool:
    return not (path.is_file() and path.read_bytes() == content)


def _told(chosen: _Example, into: Path, paths: Mapping[Path, bytes]) -> Sequence[str]:
    """Lines about files that were written: which, what they need, and the commands to type."""
    needs = [*([f"'taihu[{','.join(chosen.extras)}]'"] if chosen.extras else []), *chosen.packages]
    where = [] if into == Path() else [f"cd {into}"]
    return [
        f"wrote {', '.join(map(str, paths))}: {chosen.says}",
        *([f"needs: pip install {' '.join(needs)}"] if needs else []),
        "run:",
        *(f"  {command}" for command in (*where, *chosen.run)),
    ]
