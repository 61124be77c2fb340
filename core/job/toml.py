"""Jobs and single values as TOML."""

from __future__ import annotations

import json
import re
import tomllib

from taihu.core.base.errors import ConfigError
from taihu.core.job.job import Job
from taihu.core.traits.registry import Variant


def parse_value(text: str) -> object:
    """One TOML value, or the text itself when it is none."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def job_to_toml(job: Job, *, given: bool = False) -> str:
    """The job as a file, all ASCII, that `load_job` reads back to an equal job; with `given`, without defaults."""
    tables = job.model_dump(mode="json", exclude_none=True, exclude_unset=given)
    lines = [f"{key} = {toml_value(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for section, values in tables.items():
        if isinstance(values, dict) and values:
            lines += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """One TOML value; all but texts are written as in JSON, whose escapes stop at 16 bits.

    Raises:
        ConfigError: a text is a name of a file that is no UTF-8, which no job file takes.
    """
    if isinstance(value, Variant):
        value = value.key
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if re.search("[\ud800-\udfff]", value):
        raise ConfigError(f"{value!a}: this name of a file or folder is not UTF-8; rename it")
    escaped = re.sub(r"[^ !#-\[\]-~]", lambda match: f"\\U{ord(match[0]):08X}", value)
    return f'"{escaped}"'
