"""The names that programs import, by their docstrings: read from the source alone, with nothing installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import griffe

from from_code.cells import code, table

_HEAD: Final = """\
# Python

All that programs import. `taihu.train` and `taihu.load` are told of at length in [From Python](../python.md),
`taihu.torch` in [PyTorch](../torch.md), layers in [Models](../models.md), loggers in
[Results](../results.md#loggers).

This page is made from the code: `make reference`.
"""
_MODULES: Final = {
    "taihu": "taihu.api",
    "taihu.torch": "taihu.torch",
    "taihu.engine": "taihu.worker.engine",
    "taihu.loggers": "taihu.core.job.loggers",
    "taihu.errors": "taihu.core.base.errors",
}
_LISTED: Final = "taihu.errors"
_SECTIONS: Final = {"parameters": "argument", "attributes": "attribute", "raises": "raises", "returns": "returns"}


def page() -> str:
    """The page of all public modules."""
    parts = [_HEAD]
    for public, source in _MODULES.items():
        module = _module(source)
        names = [str(each).strip("'\"") for each in module.exports or () if str(each) != "*"]
        parts += [f"## {public}", "", *_text(module.docstring), ""]
        if public == _LISTED:
            parts += ["[Errors](errors.md#classes) lists the classes.", ""]
            continue
        for name in names:
            parts += _entry(f"{public}.{name}", _found(module[name]))
    return "\n".join(parts)


@cache
def _package() -> Any:
    return griffe.load(
        "taihu", search_paths=[Path(__file__).parents[2]], allow_inspection=False, docstring_parser="google"
    )


def _module(name: str) -> Any:
    return _package()[name.removeprefix("taihu.")]


def _found(member: Any) -> Any:
    return member.final_target if member.is_alias else member


def _entry(name: str, found: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    shown = found.name if found.is_class or found.is_function else ""
    if shown:
        yield from ("```", f"{name.rpartition('.')[2]}{_signature(found)}", "```", "")
    yield from _text(found.docstring)
    if found.is_class:
        rows = [
            (code(f"{each.name}{_signature(each)}" if each.is_function else each.name), _first(each))
            for each in _members(found)
        ]
        if rows:
            yield from ("", *table(("member", "meaning"), rows))
    yield ""


def _members(found: Any) -> Iterator[Any]:
    for name, member in found.members.items():
        if not name.startswith("_") and not member.is_alias and member.docstring is not None:
            yield member


def _signature(found: Any) -> str:
    if found.is_class:
        maker = found.all_members.get("__init__")
        parameters = found.parameters if maker is None else maker.parameters
    else:
        parameters = found.parameters
    words, stars = [], False
    for each in parameters:
        if each.name == "self":
            continue
        if each.kind is griffe.ParameterKind.keyword_only and not stars:
            stars = True
            words.append("*")
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        stars = stars or mark == "*"
        words.append(f"{mark}{each.name}" + ("" if each.default is None or mark else f"={each.default}"))
    return f"({', '.join(words)})"


def _first(member: Any) -> str:
    return str(member.docstring.value).partition("\n\n")[0]


def _text(docstring: Any) -> Iterator[str]:
    for section in docstring.parsed if docstring is not None else ():
        if section.kind.value == "text":
            yield _plain(section.value)
        elif section.kind.value in _SECTIONS:
            rows = [(code(_label(each)), each.description) for each in section.value]
            yield from ("", *table((_SECTIONS[section.kind.value], "meaning"), rows))


def _label(item: Any) -> str:
    name = getattr(item, "name", "")
    return str(name or item.annotation or "")


def _plain(text: str) -> str:
    """A paragraph as it is, where nothing but names in backticks is marked."""
    return text.replace("*", "\\*").replace("::\n", ":\n")
