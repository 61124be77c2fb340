"""The commands of `taihu`, their options and examples, as their --help has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typer.core import TyperGroup

from from_code.cells import code, table
from taihu.cli.lazy import LazyCommand
from taihu.cli.main import make_app
from taihu.core.process.command_line import command_of

_HEAD: Final = """\
# Commands

All commands of `taihu`, with their options. `taihu COMMAND --help` shows the same.

This page is made from the code: `make reference`.
"""
_OF_ALL: Final = {"--help", "--version", "--install-completion", "--show-completion"}
_JOB: Final = "Job: these set keys of the job file"


def page() -> str:
    """The page of all commands; options that set keys of the job are listed once, in the end."""
    found = dict(_commands(make_app(), ("taihu",)))
    parts = [
        _HEAD,
        *table(("command", "what it does"), ((_link(path), command.help or "") for path, command in found.items())),
    ]
    of_job: dict[str, Any] = {}
    for path, lazy in found.items():
        command = command_of(lazy.load(), lazy.name)
        job = {option.opts[0]: option for option in command.params if _is_of_job(option)}
        of_job = {**job, **of_job}
        parts += ["", f"## {' '.join(path)}", "", *_words(command.help or "")]
        parts += _options([each for each in command.params if not _is_of_job(each)])
        if job:
            told = f"It takes {len(job)} [options that set the job](#options-that-set-the-job): "
            parts += ["", f"{told}{', '.join(map(code, job))}."]
    parts += ["", "## Options that set the job", "", "Each is a key of [the job file](../job.md), too."]
    parts += _options(list(of_job.values()))
    return "\n".join(parts) + "\n"


def options() -> Iterator[tuple[str, Any]]:
    """Every option of every command, with the command's name."""
    for path, lazy in _commands(make_app(), ("taihu",)):
        for option in command_of(lazy.load(), lazy.name).params:
            yield " ".join(path), option


def _commands(group: TyperGroup, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], LazyCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _commands(command, (*path, name))
        elif isinstance(command, LazyCommand):
            yield (*path, name), command


def _link(path: tuple[str, ...]) -> str:
    return f"[{' '.join(path[1:])}](#{'-'.join(path)})"


def _is_of_job(option: Any) -> bool:
    return getattr(option, "rich_help_panel", None) == _JOB


def _words(text: str) -> list[str]:
    """A docstring: paragraphs as they are, examples and other indented parts as blocks."""
    lines: list[str] = []
    is_block = False
    for line in text.replace("\b\n", "").replace("\b", "").splitlines():
        indented = line.startswith("  ")
        if indented and not is_block:
            lines += ["", "```"] if lines and lines[-1] else ["```"]
        elif is_block and not indented:
            lines += ["```"]
        is_block = indented
        lines.append(line.removeprefix("  ") if indented else line.replace("<", "&lt;").replace("*", "\\*"))
    return [*lines, "```"] if is_block else lines


def _options(params: list[Any]) -> list[str]:
    rows = [
        (_name(each), code(_takes(each)), _default(each), each.help or "")
        for each in params
        if not each.hidden and not set(each.opts) & _OF_ALL
    ]
    return ["", *table(("option", "takes", "default", "meaning"), rows)] if rows else []


def _name(option: Any) -> str:
    if option.param_type_name == "argument":
        return code(option.metavar or option.name.upper())
    return ", ".join(map(code, [*sorted(option.opts, key=len, reverse=True), *option.secondary_opts]))


def _takes(option: Any) -> str:
    return "" if getattr(option, "is_flag", False) or option.param_type_name == "argument" else option.metavar or ""


def _default(option: Any) -> str:
    if option.required:
        return "needed"
    shown = option.show_default
    if isinstance(shown, str):
        return code(shown)
    value = option.default
    return "" if value is None or value is False or value == () or callable(value) else code(str(value))
