"""`[run]`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from taihu.core.settings.base import FilePath, Form, Section


def _check_placeholders(folder: Path) -> Path:
    if re.search(r"[{}]", re.sub(r"\{(name|time)\}", "", str(folder))) is not None:
        raise ValueError(f"expected no braces but {{name}} and {{time}}, got {str(folder)!r}")
    return folder


def _listed(value: Any) -> Any:
    """A text as a list of what stands between its commas: as people write it behind `--set`."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(f"expected each logger once, got {', '.join(names)}")
    return names


_LOGGER = Form(r"[A-Za-z0-9_.-]+", "a name", "mlflow")


class RunSettings(Section):
    """`[run]`: what stays of a run. Every process has its own table; worker 0 writes the files.

    `dir` is a new folder for everything: settings, results, a table of all steps, the model. `{name}` in it stands
    for the job's name (or model and data, if it has none), `{time}` for the start. `save` names the model's file and
    `results` a further file of results; relative ones lie in `dir`, or in the current folder where there is no `dir`.
    With a `dir` the model is saved as `model.safetensors` if `save` names nothing else. `none` stands for no folder,
    or no file, where there would be one. `loggers` get every step and test, too, and need a `dir`. `history` is a
    folder in which every process records what it did, for `taihu dev history`; a relative one lies in the folder of
    `taihu train`, or in the current one of a daemon. `order` is a folder in which every server records which frames
    entered which version, where `exchange.consistency` does not say so already: `taihu dev replay` makes such a run
    again. It lies as `history` does; `taihu train` has one in its folder unless it is told `none`.
    """

    dir: Annotated[FilePath, AfterValidator(_check_placeholders)] | None = Field(
        default=None,
        description="a new folder for settings, results, steps and model, or none; {name} and {time} are filled in",
    )
    save: FilePath | None = Field(default=None, description="where the model is saved at the end, or none")
    results: FilePath | None = Field(default=None, description="a further file for the results, or none at all")
    loggers: Annotated[
        tuple[Annotated[str, _LOGGER], ...], Field(strict=False), BeforeValidator(_listed), AfterValidator(_once)
    ] = Field(
        default=(),
        description="what else steps and tests go to, by name: tensorboard, mlflow, wandb, trackio, or a package's",
    )
    order: FilePath | None = Field(
        default=None, description="a folder in which servers record which frames entered which version, or none"
    )
    history: FilePath | None = Field(
        default=None, description="a folder in which every process records what it did, or none"
    )
