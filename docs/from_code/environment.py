"""The variables of the environment that mean something to taihu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from from_code import command_pages
from from_code.cells import code, table
from taihu.core.job import setting_keys
from taihu.core.job.variables import PREFIX, known_variables, variable_of

_HEAD: Final = """\
# Environment

A variable that begins with `TAIHU_` and means nothing ends a command with an error, which suggests the
nearest name.

This page is made from the code: `make reference`.

## Keys of the job

Each key of [the job file](../job.md) is a variable: `TAIHU_SECTION__KEY`, with two underscores between.
`TAIHU_TRAIN__STEPS` is `train.steps`. Variables come behind the file, and before `--set` and flags.
"""
_LAUNCHERS: Final = """\
## Launchers

Variables of launchers are read in the place of `--rank` and `--coordinator`: `RANK`, `WORLD_SIZE`,
`MASTER_ADDR`, `MASTER_PORT`; those of Open MPI, PMI, Slurm, ps-lite, and Kubernetes' indexed jobs.
[Launchers](../launchers.md#taihu-node) has the table.
"""
_MEANINGS: Final = {
    "TOKEN": "secret of a run, which callers show ([security](../security.md#a-token-in-the-place-of-certificates))",
    "JOB": "job file of a script that no `taihu run` starts; of compose, the job file of the run",
    "IMAGE": "compose: the image",
    "SERVERS": "compose: number of servers",
    "WORKERS": "compose: number of workers",
    "AGENTS": "compose: number of containers with agents",
    "RESTARTS": "compose: `checkpoint.restarts` of a run with agents",
    "THREADS": "compose: threads of each container",
    "RUN": "compose: folder of the run on the volume",
    "LOOK_AFTER": "`deploy/run-compose`: seconds until it looks at the run",
    "LOG": "file of a script's log lines; `taihu run` sets it",
    "LIVES": "number of earlier lives of a script; `taihu run` sets it",
    "REPLACES": "1 where a lost process of a script is started again alone; `taihu run` sets it",
    "RUN_DIR_IS_MADE": "1 where the run's folder is there already; `taihu run` sets it",
    "RANK_OFFSET": "number that is added to the rank that a launcher tells",
    "RANK": "rank of a process, before what a launcher tells",
    "JSON": "script: file of its results, as `--json`; `taihu run` sets it",
    "TRACE": "script: file of its trace, as `--trace`; `taihu run` sets it",
    "TRACE_STEPS": "script: steps of its trace, as `--trace-steps`",
    "REWRITE": "tests: 1 records scenarios anew",
}


def page() -> str:
    """The page of all variables but those of keys, which the job file's page has."""
    parts = [_HEAD, "## Options", "", *table(("variable", "option", "meaning"), _options()), ""]
    parts += ["## Others", "", *table(("variable", "meaning"), _others()), "", _LAUNCHERS]
    return "\n".join(parts)


def _options() -> Iterator[tuple[str, str, str]]:
    seen: dict[str, tuple[str, str]] = {}
    for _, option in command_pages.options():
        if isinstance(option.envvar, str):
            seen.setdefault(option.envvar, (max(option.opts, key=len), option.help or ""))
    yield from ((code(name), code(option), text) for name, (option, text) in sorted(seen.items()))


def _others() -> Iterator[tuple[str, str]]:
    of_options = {option.envvar for _, option in command_pages.options() if isinstance(option.envvar, str)}
    of_keys = {variable_of(key) for key in ("name", *setting_keys())}
    for name in sorted(known_variables()):
        if name not in of_options | of_keys:
            yield code(name), _MEANINGS[name.removeprefix(PREFIX)]
