"""The job file: what one run is, the same on a laptop and on a hundred machines.

Every key can be given, in rising precedence, by the file, by an alias that a launcher sets (`RANK`,
`DMLC_NUM_WORKER`, ...; see `taihu.environment`), by `TAIHU_SECTION__KEY`, by `--set section.key=value`, by a flag.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from taihu.errors import ConfigError

__all__ = [
    "ClusterSettings",
    "DataSettings",
    "ExchangeSettings",
    "Job",
    "ModelSettings",
    "OptimizerSettings",
    "Overrides",
    "TrainSettings",
    "job_to_toml",
    "load_job",
    "parse_assignments",
    "parse_value",
]

Overrides = Mapping[str, Mapping[str, object]]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A table of the job file: frozen, typed, finite, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSettings(Section):
    """`[model]`: a model of the zoo, or `path/to/file.py:build`."""

    name: str = "small_cnn"


class DataSettings(Section):
    """`[data]`: the data set, where its files lie, and how training images are augmented."""

    name: str = "digits"
    path: Path | None = None
    augment: Literal["none", "flip", "crop-flip"] = "none"


class TrainSettings(Section):
    """`[train]`: `batch` is per worker; `steps`, when given, overrides `epochs`."""

    batch: PositiveInt = 32
    epochs: PositiveInt = 10
    steps: PositiveInt | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    evaluate: bool = True


class OptimizerSettings(Section):
    """`[optimizer]`: the update rule and its learning-rate schedule. Steps count from 1.

    `milestones` (schedule `step`), `decay_steps` (schedule `cosine`) and `warmup_steps` are in steps.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: PositiveFloat = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 1e-8
    schedule: Literal["constant", "step", "cosine"] = "constant"
    milestones: tuple[PositiveInt, ...] = ()
    gamma: PositiveFloat = 0.1
    decay_steps: Annotated[int, Field(ge=0)] = 0
    final_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _schedule_is_complete(self) -> OptimizerSettings:
        if self.schedule == "step" and not self.milestones:
            raise ValueError("schedule 'step' needs optimizer.milestones, for example [800, 1200]")
        if self.schedule == "cosine" and not self.decay_steps:
            raise ValueError("schedule 'cosine' needs optimizer.decay_steps, the step at which it ends")
        if self.nesterov and (self.name != "sgd" or not self.momentum):
            raise ValueError("nesterov needs optimizer.name = 'sgd' and a momentum above 0")
        return self


class ExchangeSettings(Section):
    """`[exchange]`: how gradients and parameters travel.

    `plan` merges layers into groups: `per-layer`, `single`, or `bucket:SIZE` (for example `bucket:4MB`). A group
    is cut into frames of at most `frame_bytes` for each server; at most `window_frames` of them are on their way
    to one server without an answer.
    """

    kind: Literal["server"] = "server"
    plan: Annotated[str, Field(pattern=r"^(per-layer|single|bucket:[0-9]+(\.[0-9]+)?[kMG]?B)$")] = "bucket:1MB"
    frame_bytes: Annotated[int, Field(ge=4096, le=4 << 20, multiple_of=4)] = 1 << 19
    window_frames: PositiveInt = 6
    timeout_s: PositiveFloat = 600.0
    non_finite: Literal["error", "allow"] = "error"


class ClusterSettings(Section):
    """`[cluster]`: how many processes there are, and where server 0 is found."""

    servers: PositiveInt = 2
    workers: PositiveInt = 3
    coordinator: Annotated[str, Field(pattern=r"^[^:\s]+:[0-9]{1,5}$")] | None = None
    connect_timeout_s: PositiveFloat = 60.0
    heartbeat_s: PositiveFloat = 0.5
    lost_after_s: PositiveFloat = 15.0
    threads: Annotated[int, Field(ge=0)] = 0
    reflection: bool = False


class Job(Section):
    """A whole job; every key has a default, so that an empty file is a job."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "taihu"
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    cluster: ClusterSettings = ClusterSettings()

    @property
    def digest(self) -> str:
        """SHA-256 over the settings that all members of a run must share (not paths or addresses)."""
        local = {"coordinator", "connect_timeout_s", "threads", "reflection"}
        own = {"data": {"path"}, "train": {"evaluate"}, "cluster": local}
        return hashlib.sha256(self.model_dump_json(exclude=own).encode()).hexdigest()


def load_job(path: Path | None, *overrides: Overrides) -> Job:
    """Read the job file (or none) and lay `overrides` over it, later ones on top.

    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown (the nearest is suggested), or a value is
            of the wrong type or out of range.
    """
    tables: dict[str, Any] = {} if path is None else _read(path)
    source = str(path) if path else "job"
    for layer in overrides:
        for section, values in layer.items():
            table = tables.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{source}: {_one_line(section)}: expected a table, got {table!r}")
            table.update(values)
    try:
        return Job.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(_describe(error, source)) from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, dict[str, object]]:
    """Turn `section.key=value` texts into overrides; values are TOML where they parse as TOML, else strings.

    Raises:
        ConfigError: a text is not of this form.
    """
    overrides: dict[str, dict[str, object]] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (equals and dot and section and name):
            raise ConfigError(
                f"--set {_one_line(assignment)}: expected section.key=value, for example train.steps=100"
            )
        overrides.setdefault(section, {})[name] = parse_value(text.strip())
    return overrides


def parse_value(text: str) -> object:
    """One TOML value, or the text itself when it is none."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"job file {path}: not found; give the path of a TOML file, or none for the demo") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"job file {path}: not valid TOML: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"job file {path}: cannot be read: {error}") from None


def _describe(error: ValidationError, source: str) -> str:
    first = error.errors(include_url=False)[0]
    where = _one_line(".".join(str(part) for part in first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"{source}: unknown key {where}{_suggestion(first['loc'])}"
    seen = "" if first["type"] == "value_error" else f", got {first['input']!r}"
    prefix = f"{source}: {where}: " if where else f"{source}: "
    return f"{prefix}{first['msg'].removeprefix('Value error, ')}{seen}"


def _suggestion(location: tuple[int | str, ...]) -> str:
    """The nearest known key; a key that is right but in the wrong section is found too."""
    sections = {name: field.annotation for name, field in Job.model_fields.items()}
    tables = {n: s for n, s in sections.items() if isinstance(s, type) and issubclass(s, Section)}
    wrong = str(location[-1])
    home = (
        [f"{location[0]}.{key}" for key in tables[str(location[0])].model_fields]
        if len(location) > 1
        else list(sections)
    )
    everywhere = [f"{name}.{key}" for name, table in tables.items() for key in table.model_fields]
    exact = [key for key in everywhere if key.rpartition(".")[2] == wrong]
    full = ".".join(map(str, location))
    near = exact or difflib.get_close_matches(full, home, n=1) or difflib.get_close_matches(full, everywhere, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(home)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def job_to_toml(job: Job) -> str:
    """The job as a file, all ASCII, that `load_job` reads back to an equal job."""
    tables = job.model_dump(mode="json", exclude_none=True)
    lines = [f"{key} = {_to_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for section, values in tables.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *(f"{key} = {_to_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _to_toml(value: object) -> str:
    """One TOML value; all but texts are written as in JSON, whose escapes stop at 16 bits."""
    if not isinstance(value, str):
        return json.dumps(value)
    escaped = re.sub(r"[^ !#-\[\]-~]", lambda match: f"\\U{ord(match[0]):08X}", value)
    return f'"{escaped}"'
