"""The reference of all keys of a job file, made from the settings themselves: one source for every form of it."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import one_line
from taihu.core.job import Job, setting_keys, setting_tables, toml_value
from taihu.core.job.flags import flags_by_key
from taihu.core.job.mistakes import RENAMED, new_name
from taihu.core.job.variables import variable_of
from taihu.core.settings.words import expected

_WIDTH = 118
_HEAD = """\
# The job file

Every key of a job file, with its type, bounds, default and meaning. A file is TOML; what it leaves out has its
default, so that an empty file is a job. Each key is also `--set section.key=value` and a variable in the environment,
`TAIHU_SECTION__KEY`; some have a flag. Later ones win: the file, the environment, `--set`, flags. For one process of
several (`taihu server`, `worker`, `node`) what the launcher says of sizes and addresses comes between file and
environment.

`taihu job --defaults` writes all of this as a file, `taihu job --explain KEY` tells of one key, `taihu job JOB.toml`
shows what a file, the environment and flags lead to.

This page is made from the settings: `make reference`.
"""


def defaults_toml() -> str:
    """The whole job with its defaults as TOML; every key is commented out, below what it means."""
    lines = ["## Every key of a job with its default. Remove the # before what should differ.", ""]
    lines += _commented("name", Job.model_fields["name"])
    for section, table in setting_tables().items():
        lines += ["", f"[{section}]"]
        for key, field in table.model_fields.items():
            lines += _commented(key, field)
    return "\n".join(lines) + "\n"


def explain(key: str) -> str:
    """One key in some lines: type and bounds, default, meaning, and what sets it; or what a section is, and its keys.

    A key may lack its section where no other section has one of that name.

    Raises:
        ConfigError: there is no such key; the nearest is suggested.
    """
    if key in setting_tables():
        return _explain_section(key)
    fields = {"name": Job.model_fields["name"], **setting_keys()}
    if key not in fields:
        if key in RENAMED:
            raise ConfigError(f"unknown key {key}; {new_name(key)}")
        near = [each for each in fields if each.endswith(f".{key}")] if key else []
        if len(near) == 1:
            return explain(near[0])
        near = near or difflib.get_close_matches(key, fields, n=1)
        meant = f"did you mean {' or '.join(near)}?" if near else "see taihu job --defaults"
        raise ConfigError(f"unknown key {key}; {meant}")
    field = fields[key]
    flag = flags_by_key().get(key)
    rows = {
        key: field.description or "",
        "takes": expected(field),
        "default": _default(field),
        "flag": flag or "none",
        "--set": f"--set {key}=..." if "." in key else "none",
        "variable": variable_of(key) if "." in key else "none",
    }
    return "\n".join(f"{name:<{max(map(len, rows))}}  {text}" for name, text in rows.items())


def _explain_section(section: str) -> str:
    """The meaning of a section, and a line for each key."""
    table = setting_tables()[section]
    meaning = one_line(inspect.cleandoc(table.__doc__ or "").partition(": ")[2].replace("`", ""))
    names = {f"{section}.{key}": field.description or "" for key, field in table.model_fields.items()}
    width = max(map(len, names))
    lines = [
        textwrap.fill(text, _WIDTH, initial_indent=f"{name:<{width}}  ", subsequent_indent=" " * (width + 2))
        for name, text in names.items()
    ]
    return "\n".join([*textwrap.wrap(meaning[:1].upper() + meaning[1:], _WIDTH), "", *lines])


def reference_markdown() -> str:
    """The page `docs/job.md`."""
    parts = [_HEAD, *_table({"name": Job.model_fields["name"]}, "")]
    for section, table in setting_tables().items():
        text = inspect.cleandoc(table.__doc__ or "").partition(": ")[2]
        parts += ["", f"## [{section}]", "", text[:1].upper() + text[1:], ""]
        parts += _table(table.model_fields, f"{section}.")
    return "\n".join(parts) + "\n"


def _table(fields: dict[str, FieldInfo], prefix: str) -> Iterator[str]:
    yield "| key | takes | default | meaning | flag |"
    yield "|---|---|---|---|---|"
    for key, field in fields.items():
        flag = flags_by_key().get(prefix + key)
        cells = (f"`{key}`", expected(field), _default(field), field.description or "", f"`{flag}`" if flag else "")
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _commented(key: str, field: FieldInfo) -> list[str]:
    meaning = f"{field.description}; {expected(field)}"
    return [*(f"## {line}" for line in textwrap.wrap(meaning, _WIDTH)), f"# {key} = {_default(field)}"]


def _default(field: FieldInfo) -> str:
    return "(not set)" if field.default is None else toml_value(field.get_default())
