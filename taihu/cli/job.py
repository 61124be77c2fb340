"""`taihu job`."""

from __future__ import annotations

from typing import Annotated

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.job import job_to_toml
from taihu.core.job.advice import advice
from taihu.core.job.environment import resolve_job
from taihu.core.job.reference import defaults_toml, explain
from taihu.core.process.options import JobArgument, SetOption


def job(
    job_file: JobArgument = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="Every key with its default, as a job file.")] = False,
    key: Annotated[
        str | None, typer.Option("--explain", metavar="KEY", help="The meaning of a key, or of a section.")
    ] = None,
    *,
    assignments: SetOption = None,
) -> None:
    """Show what a job file, the environment and --set lead to; or all keys, or what one of them means.

    \b
    Examples:
      taihu job job.toml --set cluster.workers=8
      taihu job --defaults > job.toml
      taihu job --explain exchange.zero
      taihu job --explain compression
    """  # noqa: D301
    if sum((defaults, key is not None, job_file is not None or bool(assignments))) > 1:
        raise ConfigError("taihu job: expected one of JOB.toml (with --set), --defaults and --explain KEY")
    if defaults:
        typer.echo(defaults_toml(), nl=False)
    elif key is not None:
        typer.echo(explain(key))
    else:
        resolved = resolve_job(job_file, assignments or (), {})
        for line in advice(resolved):
            typer.echo(f"warning: {line}", err=True)
        typer.echo(job_to_toml(resolved), nl=False)
