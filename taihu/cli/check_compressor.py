"""`taihu dev check-compressor`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.compression.coder_conformance import CODER_PROMISES
from taihu.core.compression.conformance import PROMISES, Promise, Trial, broken_by
from taihu.core.process.programs.user_code import explained, load_object, split_function
from taihu.core.traits.methods import METHODS, Method


def check_compressor(
    method: Annotated[
        str,
        typer.Argument(metavar="FILE.py:METHOD|NAME", help="Your method, or one that is built in or installed."),
    ],
    density: Annotated[float, typer.Option(metavar="R", help="The share that it is to send.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the gradients.")] = 0,
) -> None:
    """Check what a method of compression promises: nothing lost, the same bits again, a run that goes on.

    Each promise is checked by the objects that workers have. Ends with exit code 1 where one is broken. How a method
    is written: docs/own_methods.md.

    \b
    Examples:
      taihu dev check-compressor mine.py:METHOD
      taihu dev check-compressor mine.py:METHOD --density 0.01 --seed 7
      taihu dev check-compressor dlgs
    """  # noqa: D301
    if not 0 < density <= 1:
        raise ConfigError(f"--density {density:g}: expected a share above 0 and at most 1")
    is_own = ":" in method
    found = load_object(method, Method, thing="method") if is_own else METHODS[method]
    if not found.holds_back:
        raise ConfigError(f"method {found}: it selects nothing, and sends all there is")
    promises, faults = CODER_PROMISES if found.codes else PROMISES, []
    for promise in promises:
        fault = _fault(promise, Trial(found, density, seed), split_function(method)[0] if is_own else None)
        typer.echo(f"{'BROKEN' if fault else 'kept':<8}{promise.words}")
        faults += [f"{promise.words}: {fault}"] if fault else []
    if faults:
        for fault in faults[1:]:
            typer.echo(f"broken: {fault}", err=True)
        raise RunError(f"method {found}: {faults[0]}")
    tried = "" if found.codes else f" at density {density:g}"
    typer.echo(f"method {found} keeps all {len(promises)} promises{tried}")


def _fault(promise: Promise, trial: Trial, path: Path | None) -> str:
    """The way in which the promise is broken; "" where it is kept. Errors of the user's code come with their line."""
    try:
        with ExitStack() as stack:
            if path is not None:
                stack.enter_context(explained(path, thing="method"))
            return broken_by(promise, trial)
    except ConfigError as error:
        return str(error)
