"""The flags that set keys of the job: one table, the same for every command that takes a job.

Other options that several commands take are a dataclass likewise, which `takes_options` puts into their signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, Overrides, parse_assignments
from taihu.core.job.environment import resolve_job
from taihu.core.job.toml import parse_value
from taihu.core.model.names import DATA_NAMES, MODEL_NAMES, OWN_DATA
from taihu.core.process.options import ServersOption, SetOption, Sets, WorkersOption
from taihu.core.traits.consistencies import CONSISTENCIES, Consistencies
from taihu.core.traits.exchanges import EXCHANGES
from taihu.core.traits.methods import METHODS
from taihu.core.traits.optimizers import OPTIMIZERS
from taihu.core.traits.registry import Registry
from taihu.core.traits.stages import STAGES

_PANEL = "Job: these set keys of the job file"
_TOP = ""

Result = TypeVar("Result")


def _own_models() -> list[str]:
    return [*MODEL_NAMES]


def _data_sets() -> list[str]:
    return [*DATA_NAMES]


def _key_in(registry: Registry[Any] | Consistencies) -> Callable[[str], str | int]:
    """A parser of the keys of variants."""

    def parse(text: str) -> str | int:
        try:
            key: str | int = registry[parse_value(text)].key
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
        return key

    return parse


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """Flags as they were given; None stands for one that was not. A new flag is a new field here.

    `assignments` are those of `--set`, over which flags win.
    """

    servers: ServersOption = None
    workers: WorkersOption = None
    exchange: Annotated[
        str | None,
        Sets("exchange.kind"),
        typer.Option(
            "--exchange",
            parser=_key_in(EXCHANGES),
            metavar="server|ring",
            help="Through servers, or around a ring of workers.",
        ),
    ] = None
    model: Annotated[
        str | None,
        Sets("model.name"),
        typer.Option(
            "--model",
            metavar="M",
            help=f"{', '.join(MODEL_NAMES)}, or path/to/file.py:function.",
            autocompletion=_own_models,
        ),
    ] = None
    data: Annotated[
        str | None,
        Sets("data.name"),
        typer.Option(
            "--data",
            metavar="D",
            help=f"{', '.join(DATA_NAMES)}, or your own: {OWN_DATA}.",
            autocompletion=_data_sets,
        ),
    ] = None
    data_path: Annotated[
        Path | None,
        Sets("data.path", "none"),
        typer.Option("--data-path", metavar="DIR", help="Where the data set's files lie."),
    ] = None
    init_from: Annotated[
        Path | None,
        Sets("model.init_from", "none"),
        typer.Option("--init-from", metavar="FILE.safetensors", help="A saved model to train on."),
    ] = None
    batch: Annotated[
        int | None, Sets("train.batch"), typer.Option("--batch", metavar="B", help="Samples per worker and step.")
    ] = None
    epochs: Annotated[
        int | None, Sets("train.epochs"), typer.Option("--epochs", metavar="E", help="Passes over the data.")
    ] = None
    steps: Annotated[
        int | None,
        Sets("train.steps", "as many as the epochs have"),
        typer.Option("--steps", metavar="N", help="Steps, instead of epochs."),
    ] = None
    check_every: Annotated[
        int | None,
        Sets("train.check_every", "none but at the end"),
        typer.Option("--check-every", metavar="N", min=1, help="Steps after which workers compare their parameters."),
    ] = None
    optimizer: Annotated[
        str | None,
        Sets("optimizer.name"),
        typer.Option("--optimizer", parser=_key_in(OPTIMIZERS), metavar="sgd|adam|adamw", help="The update rule."),
    ] = None
    lr: Annotated[
        float | None, Sets("optimizer.learning_rate"), typer.Option("--lr", metavar="R", help="Learning rate.")
    ] = None
    seed: Annotated[
        int | None, Sets("train.seed"), typer.Option("--seed", metavar="N", help="Seed of everything random.")
    ] = None
    compression: Annotated[
        str | None,
        Sets("compression.method"),
        typer.Option(
            "--compression",
            parser=_key_in(METHODS),
            metavar="none|topk|lags|dlgs|quantized|auto",
            help="How gradients are made smaller.",
        ),
    ] = None
    density: Annotated[
        float | None,
        Sets("compression.density"),
        typer.Option("--density", metavar="R", help="Share of the gradient that is sent, of a compressed one."),
    ] = None
    plan: Annotated[
        str | None,
        Sets("exchange.plan"),
        typer.Option(
            "--plan", metavar="P", help="Merging of layers: auto, greedy, exact, per-layer, single or bucket:SIZE."
        ),
    ] = None
    fc: Annotated[
        Literal["auto", "data", "shard"] | None,
        Sets("exchange.fc"),
        typer.Option("--fc", metavar="auto|data|shard", help="Fully connected layers: exchanged, or spread."),
    ] = None
    zero: Annotated[
        int | None,
        Sets("exchange.zero", "1 with servers, 0 in a ring"),
        typer.Option(
            "--zero", parser=_key_in(STAGES), metavar="0|1|2|3", help="Stage of ZeRO: what is not kept everywhere."
        ),
    ] = None
    consistency: Annotated[
        str | None,
        Sets("exchange.consistency"),
        typer.Option(
            "--consistency",
            parser=_key_in(CONSISTENCIES),
            metavar="bsp|ssp:K|async|bsp:N-b",
            help="Whose gradients a step waits for: all; all but K steps of them; nobody's; all but the last b.",
        ),
    ] = None
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        Sets("train.precision"),
        typer.Option(
            "--precision",
            metavar="fp32|bf16|fp16",
            help="Of what is exchanged; of a script gradients alone.",
        ),
    ] = None
    compute: Annotated[
        Literal["cpu", "sw26010"] | None,
        Sets("cluster.compute"),
        typer.Option(
            "--compute",
            metavar="cpu|sw26010",
            help="sw26010: compute here as always, but plan by modelled times of forward and backward on that "
            "processor, told by layer in metrics, trace and --json; all else is measured.",
        ),
    ] = None
    name: Annotated[str | None, Sets("name"), typer.Option("--name", metavar="NAME", help="Name of the job.")] = None
    assignments: SetOption = None

    def overrides(self) -> dict[str, dict[str, object]]:
        """Values that were given, by section and key; the section of keys that stand at the top is empty.

        Raises:
            ConfigError: an assignment is not of the form `section.key=value`.
        """
        return _laid_over(parse_assignments(self.assignments or ()), self._flags())

    def _flags(self) -> dict[str, dict[str, object]]:
        overrides: dict[str, dict[str, object]] = {}
        for flag, sets in _flags():
            value = getattr(self, flag)
            if value is not None:
                section, key = _place(sets.key)
                overrides.setdefault(section, {})[key] = str(value) if isinstance(value, Path) else value
        return overrides

    def resolve(self, job_file: Path | None, own: Overrides | None = None, *, launched: bool = False) -> Job:
        """The job: the file, the environment, these flags and what a command has of its `own`.

        `launched` is a process of several that a launcher started, see `resolve_job`.

        Raises:
            ConfigError: the job is wrong, or a flag has no effect.
        """
        given = _laid_over(self._flags(), own or {})
        job = resolve_job(job_file, self.assignments or (), given, launched=launched)
        self.check(job)
        return job

    def check(self, job: Job) -> None:
        """Raise ConfigError for a flag without effect on `job`, which it led to."""
        method = job.compression.method
        if self.density is not None and not (method.selects or method.is_chosen):
            raise ConfigError(
                f"--density {self.density:g}: nothing is compressed; give --compression topk, lags or dlgs too"
            )
        if self.servers is not None and not job.servers:
            raise ConfigError(
                f"--servers {self.servers}: workers in a ring have no servers; leave one of the two out"
            )

    def given(self) -> dict[str, object]:
        """The flags that were given, by their names on the command line, with their values."""
        values = {f"--{field.name.replace('_', '-')}": getattr(self, field.name) for field in fields(self)}
        values["--set"] = values.pop("--assignments")
        return {name: value for name, value in values.items() if value not in (None, [])}


def flags_by_key() -> dict[str, str]:
    """The flag, as on the command line, of every key that has one."""
    return {sets.key: f"--{flag.replace('_', '-')}" for flag, sets in _flags()}


def takes_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command all options of a dataclass, as `JobFlags`, in the place of a parameter of that type."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if name != "return" and is_dataclass(hint)}
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            parameters += _parameters(groups[parameter.name])
        else:
            told = _with_default(hints[parameter.name])
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=told))

    @wraps(command)
    def with_options(**values: Any) -> Result:
        # Who calls the command from Python gives a group as it is, or some of its options.
        for name, group in groups.items():
            if name not in values:
                given = [field.name for field in fields(group) if field.name in values]
                values[name] = group(**{field: values.pop(field) for field in given})
        return command(**values)

    # Typer reads both: the one for the parameters, the other for their types.
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def default_of(key: str) -> object:
    """The default of a key of the job."""
    section, name = _place(key)
    default = Job()
    return getattr(getattr(default, section) if section else default, name)


def _laid_over(below: Overrides, above: Overrides) -> dict[str, dict[str, object]]:
    return {section: {**below.get(section, {}), **above.get(section, {})} for section in {**below, **above}}


def _place(key: str) -> tuple[str, str]:
    section, _, name = key.rpartition(".")
    return section or _TOP, name


@cache
def _hints(group: type) -> Mapping[str, Any]:
    """The types of options with their notes; resolving their names takes as long as parsing a command line."""
    return MappingProxyType(get_type_hints(group, include_extras=True))


def _flags() -> Iterator[tuple[str, Sets]]:
    """Every flag that sets a key, and which one."""
    for name, hint in _hints(JobFlags).items():
        for note in get_args(hint)[1:]:
            if isinstance(note, Sets):
                yield name, note


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    """The fields of a dataclass of options as parameters of a command."""
    field: Field[Any]
    for field in fields(group):
        hint = _with_default(_hints(group)[field.name], panel=_PANEL if group is JobFlags else None)
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _with_default(hint: Any, panel: str | None = None) -> Any:
    """The type of a parameter, the help of whose option names the key that it sets, and its default."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = next((copy(note) for note in notes if isinstance(note, OptionInfo)), None)
    if option is None:
        return hint
    sets = next((note for note in notes if isinstance(note, Sets)), None)
    if sets is not None:
        option.show_default = _default_in_words(sets)
    option.rich_help_panel = panel
    return Annotated[kind, option]


def _default_in_words(sets: Sets) -> str:
    default = default_of(sets.key)
    return f"{sets.key}: {sets.otherwise if default is None else default}"
