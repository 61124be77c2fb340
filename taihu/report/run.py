"""A run as it was left: its results, its tables, its settings, its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.process.results import RESULTS_FORMAT
from taihu.report.values import items, number, text

Column = tuple[float | None, ...]


@dataclass(frozen=True)
class StepTable:
    """The columns of a table by name, all of one length."""

    columns: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> Column:
        """A column; without values where the table has none of this name."""
        return self.columns.get(name, (None,) * len(self))

    def has(self, name: str) -> bool:
        """Whether there is a value in a column."""
        return any(value is not None for value in self[name])


@dataclass(frozen=True)
class Run:
    """Everything that is known of a run; empty what there is not.

    Attributes:
        name: of its folder or file.
        results: of `taihu train`, of a worker, or of `taihu simulate`.
        steps: of worker 0.
        tests: a row for each.
        settings: the tables of its job file, with all values.
        events: in their order, each with the step after which it was.
        trace: as `taihu train --trace` writes it.
    """

    name: str
    results: Mapping[str, Any] = field(default_factory=dict)
    steps: StepTable = field(default_factory=StepTable)
    tests: StepTable = field(default_factory=StepTable)
    settings: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    trace: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        """Whether its steps are those of a virtual clock."""
        return "nodes" in self.results or self.is_sweep

    @property
    def is_sweep(self) -> bool:
        """Whether it is simulated with several numbers of nodes or servers."""
        return any("nodes" in row for row in items(self.results, "rows") if isinstance(row, Mapping))

    @property
    def model(self) -> str:
        """The name of the model, "" where it is not known."""
        return text(self.settings, "model", "name") or text(self.results, "model")

    @property
    def script(self) -> str:
        """The name of the script whose own loop it was; "" of a run of taihu's."""
        told = (text(event, "script") for event in self.events)
        return text(self.results, "script") or next(filter(None, told), "")

    @property
    def command(self) -> str:
        """The command of taihu's that makes such a run."""
        return "simulate" if self.is_simulated else "run" if self.script else "train"

    def named(self, name: str) -> Run:
        """The same run by another name."""
        return replace(self, name=name)

    def with_trace(self, trace: Mapping[str, Any]) -> Run:
        """The same run with another trace."""
        return replace(self, trace=trace)

    def fact(self, name: str, *setting: str) -> str:
        """A setting in words, from the results or else from the job; "" where neither has it."""
        for data, path in ((self.results, (name,)), (self.settings, setting)):
            found = text(data, *path)
            value = number(data, *path)
            if found or value is not None:
                return found or f"{value:g}"
        return ""


def check_results(results: object, where: str) -> Mapping[str, Any]:
    """Results that a report can be made of.

    Raises:
        ConfigError: they are of something else, or of a later taihu; `where` is told.
    """
    told = "expected what `taihu train --json` or `taihu simulate run --json` wrote"
    if not isinstance(results, dict):
        raise ConfigError(f"{where}: {told}, not a JSON {_KINDS.get(type(results), 'value')}")
    name, _, version = text(results, "format").rpartition(" ")
    known, _, newest = RESULTS_FORMAT.rpartition(" ")
    if name == known and version.isdecimal() and int(version) > int(newest):
        raise ConfigError(
            f"{where}: its format is {name} {version}, this taihu reads up to {newest}; "
            "report it with the taihu that wrote it"
        )
    is_run = number(results, "steps") is not None and isinstance(results.get("seconds_per_step"), dict)
    is_simulated = number(results, "nodes") is not None and number(results, "seconds_per_step") is not None
    if not (is_run or is_simulated or Run("", results).is_sweep):
        keys = ", ".join(repr(text(key)) for key in list(results)[:4]) or "nothing"
        raise ConfigError(f"{where}: {told}; it holds {keys}")
    return results


_KINDS: Final = MappingProxyType({list: "list", str: "text", int: "number", float: "number", type(None): "null"})
