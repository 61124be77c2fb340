"""Commands that are imported when they are run, so that all others start without what they need."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from taihu.cli.former import former_option
from taihu.core.base.errors import ConfigError
from taihu.core.process.command_line import command_of
from taihu.core.process.programs.preparation import importing_much
from taihu.core.process.programs.starting import begun


class LazyCommand(TyperCommand):
    """A stand-in for a command in the help of its group, which turns into it when it is run or asked for help.

    Args:
        name: of the command.
        target: its function, as `module:function`.
        summary: the first paragraph of the function's docstring.
    """

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._target = target

    def load(self) -> Callable[..., object]:
        """Import the function."""
        module, _, function = self._target.partition(":")
        with importing_much():
            loaded: Callable[..., object] = getattr(importlib.import_module(module), function)
        return loaded

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself, which it then invokes."""
        command = command_of(self.load(), self.name)
        begun()
        try:
            return command.make_context(info_name, args, parent, **extra)
        except typer.TyperException as error:
            option = getattr(error, "option_name", None)
            takes_set = any("--set" in parameter.opts for parameter in command.params)
            now = None if option is None else former_option(str(self.name), option, takes_set=takes_set)
            if now is None:
                raise
            path = getattr(error, "ctx").command_path  # noqa: B009 - an error of an option has one
            raise ConfigError(f"{path} {option}: it is {now} now; see '{path} --help'") from None
