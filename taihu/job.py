"""The job file: what one run is, the same on a laptop and on a hundred machines.

Every key can be given, in rising precedence, by the file, for one process of several by what its launcher sets
(`WORLD_SIZE`, `DMLC_NUM_WORKER`, ...; see `taihu.environment`), by `TAIHU_SECTION__KEY`, by `--set
section.key=value`, by a flag.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from taihu.errors import ConfigError
from taihu.model_defaults import default_learning_rate, default_model
from taihu.names import shared_data_name
from taihu.settings import (
    ClusterSettings,
    CompressionSettings,
    DataSettings,
    ExchangeSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
    Section,
    TrainSettings,
)
from taihu.settings.base import Form
from taihu.settings.words import expected, expected_of, written

__all__ = [
    "Job",
    "Overrides",
    "job_to_toml",
    "load_job",
    "parse_assignments",
    "parse_value",
    "setting_keys",
    "setting_tables",
    "toml_value",
]

Overrides = Mapping[str, Mapping[str, object]]
"""Values by section and key; the keys that stand at the top of the file are those of the section ""."""

_TOP_KEYS = ("name",)

_NAME: Final = Form(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    "at most 100 letters, digits, dots, dashes and underscores that begin with a letter or a digit",
    "fashion-2",
)


class Job(Section):
    """A whole job; every key has a default, so that an empty file is a job."""

    name: Annotated[str, _NAME] = Field(default="taihu", description="the run's name, the same in all its processes")
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    compression: CompressionSettings = CompressionSettings()
    cluster: ClusterSettings = ClusterSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _has_a_model_for_its_data(self) -> Job:
        """A model that was not set is one for the data; it still counts as one that was not set."""
        given = self.model.model_fields_set
        if "name" not in given:
            values = {**dict(self.model), "name": default_model(self.data.name)}
            # As for the learning rate below, which depends on it.
            object.__setattr__(self, "model", ModelSettings.model_construct(set(given), **values))
        return self

    @model_validator(mode="after")
    def _learns_at_the_models_rate(self) -> Job:
        """A learning rate that was not set is that of the model; it still counts as one that was not set."""
        given = self.optimizer.model_fields_set
        if "learning_rate" not in given:
            rate = default_learning_rate(self.model.name, self.optimizer.name)
            values = {**dict(self.optimizer), "learning_rate": rate}
            # The job is frozen for its users; here it is being made.
            object.__setattr__(self, "optimizer", OptimizerSettings.model_construct(set(given), **values))
        return self

    @model_validator(mode="after")
    def _compression_fits(self) -> Job:
        compression, optimizer = self.compression, self.optimizer
        sparse = self.downlink != "dense"
        if self.exchange.kind == "ring" and compression.value_type != "fp32":
            raise ValueError("a ring sums in fp32: set compression.value_type = 'fp32'")
        if compression.method != "none" and self.exchange.transport == "same-host":
            raise ValueError("compressed gradients travel in messages: set exchange.transport = 'auto'")
        if compression.method == "none" and (sparse or compression.momentum_at == "workers"):
            raise ValueError("compression.downlink and momentum on the workers need a compression.method")
        if compression.method == "topk" and self.exchange.plan not in ("auto", "single"):
            raise ValueError("compression 'topk' selects from the whole gradient: set exchange.plan = 'single'")
        if optimizer.name != "sgd" and (sparse or compression.momentum_at == "workers"):
            raise ValueError(f"optimizer '{optimizer.name}' runs on the servers: set compression.downlink = 'dense'")
        if sparse and optimizer.momentum and compression.momentum_at == "servers":
            raise ValueError("momentum on the servers changes every parameter: set compression.downlink = 'dense'")
        return self

    @model_validator(mode="after")
    def _zero_fits(self) -> Job:
        exchange, zero, usual = self.exchange, self.zero, self._usual_zero
        precision = self.train.precision
        if precision != "fp32" and zero < 2:
            raise ValueError(f"precision {precision} holds gradients group by group: set exchange.zero = 2 or 3")
        if precision != "fp32" and (self.compression.method != "none" or exchange.fc != "data"):
            raise ValueError(
                f"precision {precision} goes with dense gradients of whole layers: set train.precision = 'fp32', or "
                "compression.method = 'none' and exchange.fc = 'data'"
            )
        if self.compression.method != "none" and zero != usual:
            raise ValueError(
                f"compression keeps a residual of every gradient on every worker, which zero {zero} does not divide: "
                f"set exchange.zero = {usual}"
            )
        if zero > self._shared_zero and exchange.transport == "same-host":
            raise ValueError(f"zero {zero} keeps no arena that others can map: set exchange.transport = 'auto'")
        if zero >= 2 and exchange.fc != "data":
            raise ValueError(f"layers that are sharded do not go with zero {zero}: set exchange.fc = 'data'")
        if self.train.checkpoint != "none" and exchange.fc != "data":
            raise ValueError("sharded layers are not computed again: set train.checkpoint = 'none'")
        return self

    @model_validator(mode="after")
    def _clipping_fits(self) -> Job:
        key = "clip_norm" if self.optimizer.clip_norm is not None else "clip_value"
        if getattr(self.optimizer, key) is None:
            return self
        if self.compression.method != "none":
            raise ValueError(
                f"optimizer.{key} clips dense gradients: leave it out, or set compression.clip_norm in its place"
            )
        if self.exchange.fc != "data":
            raise ValueError(f"optimizer.{key} clips gradients of whole layers: set exchange.fc = 'data'")
        return self

    @model_validator(mode="after")
    def _compute_fits(self) -> Job:
        if self.models_compute and self.exchange.fc != "data":
            raise ValueError(f"compute {self.cluster.compute} models whole layers alone: set exchange.fc = 'data'")
        if self.models_compute and self.train.checkpoint != "none":
            raise ValueError(
                f"compute {self.cluster.compute} does not model what is computed again: set train.checkpoint = 'none'"
            )
        return self

    @property
    def models_compute(self) -> bool:
        """Whether forward and backward have modelled times."""
        return self.cluster.compute != "cpu"

    @property
    def zero(self) -> int:
        """The stage of ZeRO: what is divided among servers or workers, 0 nothing to 3 everything."""
        return self._usual_zero if self.exchange.zero is None else self.exchange.zero

    @property
    def _usual_zero(self) -> int:
        return 2 if self.train.precision != "fp32" else self._shared_zero

    @property
    def _shared_zero(self) -> int:
        """The highest stage with arenas that other processes may map."""
        return 1 if self.servers else 0

    @property
    def holds_gradients(self) -> bool:
        """Whether a step's gradients are sent when all are there: only then fp16 knows whether to skip the step."""
        return self.train.precision == "fp16"

    @property
    def plans_by_measuring(self) -> bool:
        """Whether the timeline knows the job's exchange.

        It knows one exchange for each group and step that begins within backward: not what stage 3 of ZeRO fetches,
        and not what begins after backward.
        """
        return self.zero < 3 and not self.holds_gradients

    @property
    def servers(self) -> int:
        """Number of servers; 0 where workers exchange with each other."""
        return 0 if self.exchange.kind == "ring" else self.cluster.servers

    @property
    def workers_meet(self) -> bool:
        """Whether workers exchange with each other."""
        return not self.servers or self.exchange.fc != "data"

    @property
    def downlink(self) -> Literal["dense", "exact", "doublesqueeze"]:
        """What comes back from the servers."""
        if self.compression.downlink != "auto":
            return self.compression.downlink
        exact = self.compression.method != "none" and self.optimizer.name == "sgd"
        return "exact" if exact and self.compression.momentum_at != "servers" else "dense"

    @property
    def shares_memory(self) -> bool:
        """Whether processes of one machine exchange dense gradients, and parameters, in memory that they share."""
        possible = self.exchange.transport in ("auto", "same-host") and self.zero <= self._shared_zero
        return possible and self.compression.method == "none"

    @property
    def momentum_on_workers(self) -> bool:
        """Whether workers apply momentum and weight decay before they select, and servers plain SGD."""
        return self.downlink != "dense" or self.compression.momentum_at == "workers"

    @property
    def server_optimizer(self) -> OptimizerSettings:
        """What is left for the servers to do."""
        if not self.momentum_on_workers:
            return self.optimizer
        return self.optimizer.model_copy(update={"momentum": 0.0, "nesterov": False, "weight_decay": 0.0})

    @property
    def digest(self) -> str:
        """SHA-256 over `shared_settings`."""
        return hashlib.sha256(json.dumps(self.shared_settings, sort_keys=True).encode()).hexdigest()

    @property
    def shared_settings(self) -> dict[str, str]:
        """The settings that all members of a run must share (not paths or addresses): key to value, as JSON.

        Of data of the user's own that is the name of the file or folder, which may lie elsewhere on every host.
        """
        local = {"coordinator", "connect_timeout_s", "threads", "reflection"}
        own = {"model": {"init_from"}, "data": {"path"}, "train": {"evaluate"}, "cluster": local}
        if self.servers or self.zero < 3:
            # Where workers gather parameters from each other, they must do so equally often.
            own["train"] |= {"checkpoint", "checkpoint_segments"}
        data = self.data.model_copy(update={"name": shared_data_name(self.data.name)})
        shared = self.model_copy(update={"data": data})
        tables = shared.model_dump(mode="json", exclude={**own, "name": True, "run": True})
        values = {f"{table}.{key}": json.dumps(value) for table, of in tables.items() for key, value in of.items()}
        return {"name": json.dumps(self.name), **values}


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
                raise ConfigError(f"{source}: {_one_line(section)}: expected a table, got {table!r}")
            table.update(values)
    try:
        return Job.model_validate(tables)
    except ValidationError as error:
        location = error.errors(include_url=False)[0]["loc"]
        setter = _setter(location, overrides, sources)
        raise ConfigError(_one_line(_describe(error, setter or source))) from None


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


def _describe(error: ValidationError, source: str) -> str:
    first = error.errors(include_url=False)[0]
    where = _one_line(".".join(str(part) for part in first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"{source}: unknown key {where}{_suggestion(first['loc'])}"
    prefix = f"{source}: {where}: " if where else f"{source}: "
    if first["type"] == "value_error":
        return f"{prefix}{first['msg'].removeprefix('Value error, ')}"
    wanted = _wanted(first["loc"])
    return f"{prefix}expected {wanted}, got {written(first['input'])}{_remedy(where, wanted, first['input'])}"


def _wanted(location: tuple[int | str, ...]) -> str:
    """The values that the key at `location` takes, or one value of its list."""
    field = Job.model_fields[str(location[0])]
    for part in location[1:]:
        table = field.annotation
        if isinstance(part, int) or not (isinstance(table, type) and issubclass(table, Section)):
            return expected_of(get_args(table)[0])
        field = table.model_fields[part]
    return expected(field)


def _remedy(key: str, wanted: str, given: object) -> str:
    """The right way to write a value that only looks right."""
    if isinstance(given, str) and wanted.startswith(("an integer", "a number", "a boolean")):
        value = parse_value(given)
        return "" if isinstance(value, str) else f"; write it without quotes: {key} = {given.strip()}"
    if isinstance(given, float) and wanted.startswith("an integer") and given.is_integer():
        return f"; write it without a point: {key} = {int(given)}"
    if isinstance(given, int | float) and "string" in wanted:
        return f'; write it in quotes: {key} = "{written(given)}"'
    return ""


def setting_keys() -> dict[str, FieldInfo]:
    """Every key of a job file but `name`, as `section.key`."""
    return {
        f"{section}.{key}": field
        for section, table in setting_tables().items()
        for key, field in table.model_fields.items()
    }


def setting_tables() -> dict[str, type[Section]]:
    """The tables of a job file by name."""
    kinds = {name: field.annotation for name, field in Job.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}


def _suggestion(location: tuple[int | str, ...]) -> str:
    """The nearest known key; a key that is right but in the wrong section is found too."""
    wrong = str(location[-1])
    everywhere = list(setting_keys())
    home = (
        [key for key in everywhere if key.startswith(f"{location[0]}.")] if len(location) > 1 else [*Job.model_fields]
    )
    exact = [key for key in everywhere if key.rpartition(".")[2] == wrong]
    full = ".".join(map(str, location))
    near = exact or difflib.get_close_matches(full, home, n=1) or difflib.get_close_matches(full, everywhere, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(home)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def job_to_toml(job: Job, *, given: bool = False) -> str:
    """The job as a file, all ASCII, that `load_job` reads back to an equal job; with `given`, without defaults."""
    tables = job.model_dump(mode="json", exclude_none=True, exclude_unset=given)
    lines = [f"{key} = {toml_value(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for section, values in tables.items():
        if isinstance(values, dict) and values:
            lines += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """One TOML value; all but texts are written as in JSON, whose escapes stop at 16 bits."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    escaped = re.sub(r"[^ !#-\[\]-~]", lambda match: f"\\U{ord(match[0]):08X}", value)
    return f'"{escaped}"'
