"""`[run]`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from taihu.core.settings.base import FilePath, Section

__all__ = ["RunSettings"]


def _check_placeholders(folder: Path) -> Path:
    if re.search(r"[{}]", re.sub(r"\{(name|time)\}", "", str(folder))) is not None:
        raise ValueError(f"expected no braces but {{name}} and {{time}}, got {str(folder)!r}")
    return folder


class RunSettings(Section):
    """`[run]`: what stays of a run. Every process has its own table; worker 0 writes the files.

    `dir` is a new folder for everything: settings, results, a table of all steps, the model. `{name}` in it stands
    for the job's name (or model and data, if it has none), `{time}` for the start. `save` names the model's file and
    `results` a further file of results; relative ones lie in `dir`, or in the current folder where there is no `dir`.
    With a `dir` the model is saved as `model.safetensors` if `save` names nothing else. `none` stands for no folder,
    or no file, where there would be one. `events` writes files for TensorBoard into `dir` as well. `history` is a
    folder in which every process records what it did, for `taihu dev history`; a relative one lies in the folder of
    `taihu train`, or in the current one of a daemon.
    """

    dir: Annotated[FilePath, AfterValidator(_check_placeholders)] | None = Field(
        default=None,
        description="a new folder for settings, results, steps and model, or none; {name} and {time} are filled in",
    )
    save: FilePath | None = Field(default=None, description="where the model is saved at the end, or none")
    results: FilePath | None = Field(default=None, description="a further file for the results, or none at all")
    events: Literal["none", "tensorboard"] = Field(
        default="none", description="what else steps and tests are written as, into the run's folder"
    )
    history: FilePath | None = Field(
        default=None, description="a folder in which every process records what it did, or none"
    )
