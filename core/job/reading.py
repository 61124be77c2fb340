"""A job read from its file, with what launcher, environment, `--set` and flags lay over it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import one_line
from taihu.core.job.job import Job
from taihu.core.job.mistakes import mistake
from taihu.core.job.toml import parse_value

Overrides = Mapping[str, Mapping[str, object]]
"""Values by section and key; the keys that stand at the top of the file are those of the section ""."""

_TOP_KEYS: Final = ("name",)


def load_job(path: Path | None, *overrides: Overrides, sources: Sequence[str] = ()) -> Job:
    """Read the job file (or none) and lay `overrides` over it, later ones on top.

    `sources` names where each of `overrides` is from; `{variable}` in a name stands for the key's variable.

    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown (the nearest is suggested), or a value is
            of the wrong type or out of range.
    """
    tables: dict[str, Any] = {} if path is None else _read(path)
    source = str(path) if path else "job"
    for layer in overrides:
        for section, values in layer.items():
            table = tables.setdefault(section, {}) if section else tables
            if not isinstance(table, dict):
                raise ConfigError(f"{source}: {one_line(section)}: expected a table, got {table!r}")
            table.update(values)
    try:
        return Job.model_validate(tables)
    except ValidationError as error:
        location = error.errors(include_url=False)[0]["loc"]
        setter = _setter(location, overrides, sources)
        raise ConfigError(mistake(error, setter or source)) from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, dict[str, object]]:
    """Turn `section.key=value` texts into overrides; values are TOML where they parse as TOML, else strings.

    Raises:
        ConfigError: a text is not of this form.
    """
    overrides: dict[str, dict[str, object]] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        at_top = key.strip() in _TOP_KEYS
        section, dot, name = ("", ".", key.strip()) if at_top else key.strip().partition(".")
        if not (equals and dot and name and (section or at_top)):
            raise ConfigError(
                f"--set {one_line(assignment)}: expected section.key=value, for example train.steps=100"
            )
        overrides.setdefault(section, {})[name] = parse_value(text.strip())
    return overrides


def revised(job: Job, section: str, **values: object) -> Job:
    """`job` with other values in one section, checked as a whole; what was not given stays so.

    Raises:
        ConfigError: its other settings do not go with these.
    """
    given = job.model_dump(exclude_unset=True)
    try:
        return Job.model_validate({**given, section: {**given.get(section, {}), **values}})
    except ValidationError as error:
        raise ConfigError(mistake(error, "job")) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"job file {path}: not found; give the path of a TOML file, or none for the demo") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"job file {path}: not valid TOML: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"job file {path}: cannot be read: {error}") from None


def _setter(location: tuple[int | str, ...], overrides: Sequence[Overrides], sources: Sequence[str]) -> str | None:
    """The one of `sources` that set the value at `location` last; None when it is the file's."""
    names = [str(part) for part in location[:2]]
    section, key = names if len(names) == 2 else ("", *names, "")[:2]
    for layer, source in zip(reversed(overrides), reversed(sources), strict=False):
        if key in layer.get(section, {}):
            return source.format(variable=f"TAIHU_{'__'.join(names)}".upper())
    return None
