"""Settings from the environment: taihu's own variables, and the aliases that other launchers set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, Overrides, load_job, parse_assignments, parse_value
from taihu.core.job.variables import PREFIX, check_variables, variable_of

_WORKERS = ("WORLD_SIZE", "DMLC_NUM_WORKER", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_SERVERS = ("DMLC_NUM_SERVER",)
_RANKS = ("RANK", "DMLC_WORKER_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX")
_INDICES = ("DMLC_SERVER_ID", "JOB_COMPLETION_INDEX")
_COORDINATORS = (("MASTER_ADDR", "MASTER_PORT"), ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"))


def tables_of(*given: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Tables of a job as overrides, later ones over earlier ones; keys at the top of a job become the section "".

    A value None counts as not given.
    """
    tables: dict[str, dict[str, object]] = {}
    for name, value in (item for each in given for item in each.items()):
        section, keys = (name, value) if isinstance(value, Mapping) else ("", {name: value})
        tables.setdefault(section, {}).update({key: each for key, each in keys.items() if each is not None})
    return tables


def launcher_overrides(environment: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """The sizes, and the coordinator, that a launcher's variables give."""
    cluster: dict[str, object] = {}
    for key, aliases in (("workers", _WORKERS), ("servers", _SERVERS)):
        value = _first_number(environment, aliases)
        if value is not None:
            cluster[key] = value
    address = coordinator_from_environment(environment)
    if address is not None:
        cluster["coordinator"] = address
    return {"cluster": cluster} if cluster else {}


def environment_overrides(environment: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """`TAIHU_SECTION__KEY=value` and `TAIHU_NAME=value` as overrides."""
    overrides: dict[str, dict[str, object]] = {}
    if variable_of("name") in environment:
        overrides[""] = {"name": environment[variable_of("name")]}
    for name, text in environment.items():
        section, separator, key = name.removeprefix(PREFIX).lower().partition("__")
        if name.startswith(PREFIX) and separator:
            overrides.setdefault(section, {})[key] = parse_value(text)
    return overrides


def rank_from_environment(environment: Mapping[str, str], role: str) -> int | None:
    """The rank of a worker, or index of a server, by a launcher's variable; None when no launcher set one.

    `TAIHU_RANK_OFFSET` is added to what a launcher counts: it may have been told of some of the workers alone.
    """
    own = _first_number(environment, (f"{PREFIX}RANK",))
    if own is not None:
        return own
    counted = _first_number(environment, _RANKS if role == "worker" else _INDICES)
    offset = _first_number(environment, (f"{PREFIX}RANK_OFFSET",)) or 0
    return None if counted is None else counted + offset


def number_from_environment(environment: Mapping[str, str], option: str) -> int | None:
    """The number in the variable of `option`; None where it is not set.

    Raises:
        ConfigError: it is none.
    """
    return _first_number(environment, (variable_of(option),))


def coordinator_from_environment(environment: Mapping[str, str]) -> str | None:
    """`host:port` of server 0 by a launcher's pair of variables."""
    for host, port in _COORDINATORS:
        if host in environment and port in environment:
            return _joined(environment[host], environment[port])
    return None


def _joined(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _first_number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in environment:
            try:
                return int(environment[name])
            except ValueError:
                raise ConfigError(
                    f"environment variable {name}: expected a number, got {environment[name]!r}"
                ) from None
    return None


def resolve_job(path: Path | None, assignments: Iterable[str], flags: Overrides, *, launched: bool = False) -> Job:
    """The job of this process: the file, the environment, `--set` and flags, in rising precedence.

    With `launched` this is one process of several that a launcher started, whose sizes then come after the file's.
    A command that starts a whole run by itself takes no heed of them: it may run inside of another launcher's job.

    Raises:
        ConfigError: see `load_job`; or a `TAIHU_...` variable means nothing.
    """
    check_variables(os.environ)
    given = {section: {k: v for k, v in values.items() if v is not None} for section, values in flags.items()}
    layers = {
        "launcher": launcher_overrides(os.environ) if launched else {},
        "environment variable {variable}": environment_overrides(os.environ),
        "--set": parse_assignments(assignments),
        "command line": given,
    }
    return load_job(path, *layers.values(), sources=tuple(layers))


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without everything that could change a job: for processes that get a resolved job file."""
    aliases = {*_WORKERS, *_SERVERS, *_RANKS, *_INDICES, *(name for pair in _COORDINATORS for name in pair)}
    return {name: value for name, value in environment.items() if name not in aliases and not name.startswith(PREFIX)}
