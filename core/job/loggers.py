"""Loggers of runs: what one is, and those that are known by name, built in or brought by installed packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import one_line

Kind = Literal["step", "test", "own"]
"""A row is of a step, of a test behind a step, or has a script's own values."""

State = Literal["finished", "stopped", "failed", "interrupted"]
"""An interrupted run goes on in the same folder."""

_GROUP: Final = "taihu.loggers"


class LoggedRow(NamedTuple):
    """Values of one step: their names have slashes, as `loss/worker_0`.

    Attributes:
        kind: of the row.
        step: from 1, 0 for own values before the first one.
        values: by name; infinite and NaN ones are among them.
    """

    kind: Kind
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger is of.

    Attributes:
        name: of its folder, which is another one for every run.
        folder: of the run.
        kept: a folder of this logger in it, the same in all lives of the run: an id belongs there.
        settings: of the job by their keys, as `train.batch`; paths and addresses are left out.
        tags: words about the run: `taihu.job`, `taihu.version`, and `taihu.script` of a script.
    """

    name: str
    folder: Path
    kept: Path
    settings: Mapping[str, str | int | float | bool]
    tags: Mapping[str, str]


class Logger(Protocol):
    """Takes in the rows of one life of a run, in a thread of its own: nobody waits for it but the end of the run.

    An exception gives the logger up with a warning, and the run goes on.
    """

    def begin(self, handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        """Begin, before anything else is called; return the last step of each kind that is there already.

        Args:
            handed: the last steps for which `log` has returned in earlier lives; empty in the first one. Most loggers
                return it. Rows up to there are not handed over again, later ones of steps and tests are.
        """
        ...

    def log(self, rows: Sequence[LoggedRow]) -> None:
        """Take in rows, by ascending steps, at most 1,000; they come once in a second."""
        ...

    def end(self, state: State) -> None:
        """Write what is left; nothing comes after."""
        ...


class _BuiltIn(NamedTuple):
    """A logger that is here: its class, and the package that it needs with the extra that brings it."""

    place: str
    package: str
    distribution: str
    extra: str


_HERE: Final = "taihu.worker.reporting.loggers"
_BUILT_IN: Final = {
    "tensorboard": _BuiltIn(f"{_HERE}.to_tensorboard:EventFile", "tensorboardX", "tensorboardX", "tensorboard"),
    "mlflow": _BuiltIn(f"{_HERE}.to_mlflow:MlflowRun", "mlflow", "mlflow", "mlflow"),
    "trackio": _BuiltIn(f"{_HERE}.to_trackio:TrackioRun", "trackio", "trackio", "trackio"),
    "wandb": _BuiltIn(f"{_HERE}.to_wandb:WandbRun", "wandb", "wandb", "wandb"),
}


def known_loggers() -> tuple[str, ...]:
    """The names of all loggers: built-in ones, and those of installed packages."""
    return tuple(dict.fromkeys([*_BUILT_IN, *sorted(point.name for point in _installed())]))


def check_loggers(names: Iterable[str]) -> None:
    """Find all of them; nothing is imported.

    Raises:
        ConfigError: one is unknown, or its package is not installed.
    """
    for name in names:
        built_in = _BUILT_IN.get(name)
        if built_in is None:
            _find(name)
        elif find_spec(built_in.package) is None:
            raise ConfigError(
                f"run.loggers {name!r}: {built_in.distribution} is not installed; "
                f"pip install 'taihu[{built_in.extra}]', or leave {name!r} out of run.loggers"
            )


def make_logger(name: str, run: LoggedRun) -> Logger:
    """Import the logger of a name, and make that of a run.

    Raises:
        ConfigError: it is unknown.
        Exception: whatever its package raises.
    """
    built_in = _BUILT_IN.get(name)
    if built_in is None:
        loaded: Any = _find(name).load()
    else:
        module, _, attribute = built_in.place.partition(":")
        loaded = getattr(import_module(module), attribute)
    if not callable(loaded):
        raise ConfigError(f"entry point {name} of {_GROUP}: expected what makes a logger, got {loaded!r}")
    made: Logger = loaded(run)
    return made


def _find(name: str) -> EntryPoint:
    found = next((point for point in _installed() if point.name == name), None)
    if found is None:
        known = ", ".join(known_loggers())
        raise ConfigError(f"run.loggers: no logger is called {one_line(name)!r}; known here: {known}")
    return found


def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=_GROUP))
