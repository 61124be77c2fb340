"""The columns of a table that are read, by its names and the settings: what is wrong with these is taken down."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taihu.core.settings import DataSettings
from taihu.worker.data.base.defects import Fault
from taihu.worker.data.own.tables.table_files import TableFile


@dataclass(frozen=True)
class Plan:
    """Columns that become features, in order, and the one to predict, None where it is not there."""

    features: tuple[str, ...]
    target: str | None

    @property
    def read(self) -> list[str]:
        """All that are read."""
        return [*self.features, *([self.target] if self.target is not None else [])]


def plan_columns(table: TableFile, settings: DataSettings, features: Sequence[str] = ()) -> Plan:
    """Tell which columns are read; `features`, where they are known, are those of a saved model."""
    names = [name for name in dict.fromkeys(table.types) if name not in settings.drop]
    for fault in _faults(table, settings, names, features):
        table.defects.of_data(fault)
    target = settings.target if settings.target is not None else names[-1] if names else None
    if target is not None and target not in names:
        target = None
    chosen = [name for name in features if name in names] or [name for name in names if name != target]
    return Plan(tuple(chosen), target)


def _faults(
    table: TableFile, settings: DataSettings, names: Sequence[str], features: Sequence[str]
) -> Iterator[Fault]:
    everything = list(table.types)
    if settings.target is not None and settings.target not in names:
        dropped = settings.target in settings.drop
        hint = "it is in data.drop" if dropped else _hint(settings.target, names)
        yield Fault(f"no column {settings.target!r} for data.target", hint)
    elif len(names) < 2:
        only = names[0] if names else "none"
        yield Fault(
            f"{only} is its only column",
            "columns are separated by comma, semicolon, tab or |; others are expected to predict it from",
        )
    for key, given in (("drop", settings.drop), ("texts", settings.texts)):
        for name in given:
            if name not in everything:
                yield Fault(f"no column {name!r} for data.{key}", _hint(name, everything))
    for fill in settings.fill:
        name = fill.rpartition("=")[0]
        if name and name not in everything:
            yield Fault(f"no column {name!r} for data.fill", _hint(name, everything))
    for name in features:
        if name not in everything:
            yield Fault(f"no column {name}, which the model was trained on", _hint(name, everything))
    for name in table.unnamed:
        if name not in settings.drop:
            yield Fault(
                f"{name} has no name, as columns of row numbers have", f"name it, or set data.drop = ['{name}']"
            )


def _hint(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
