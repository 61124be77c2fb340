"""A function with typed parameters as a command: what every command has beside its own options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

from taihu.core import __version__
from taihu.core.process.results import is_stdout

CONTEXT_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


def command_of(function: Callable[..., object], name: str | None = None) -> Any:
    """The command, with `-h` and `--version`; with `--json -` standard output has the results alone."""
    app = typer.Typer(add_completion=False)
    app.command(name, context_settings=CONTEXT_SETTINGS)(_results_alone(function))
    command = get_command(app)
    command.params.append(version_option())
    # Behind a script all options are its own.
    command.allow_interspersed_args = not {"script", "arguments"} <= inspect.signature(function).parameters.keys()
    return command


def version_option() -> Any:
    """`--version`: print it and end."""
    app = typer.Typer(add_completion=False)
    app.command()(_with_version)
    return get_command(app).params[0]


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"taihu {__version__}")
        raise typer.Exit


def _with_version(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, expose_value=False, help="Tell the version."
        ),
    ] = False,
) -> None:
    pass


def _results_alone(function: Callable[..., object]) -> Callable[..., object]:
    @wraps(function)
    def command(**values: Any) -> object:
        if not is_stdout(values.get("json_file")):
            return function(**values)
        with redirect_stdout(sys.stderr):
            return function(**values)

    return command
