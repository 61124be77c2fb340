"""The end of a run, kept beside its checkpoints.

It is there before anybody is told: whoever loses the coordinator in its farewell, or is started again, finds it. It
stays when all have heard: a process may be killed behind its last word, and be started again when nobody is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from taihu.core.checkpoint.places import Place, make_folder, write_durably

ENDED: Final = "ended.json"
"""The name of the file, in the folder of the run's checkpoints."""


class EndedRun(BaseModel):
    """A run that has finished.

    Attributes:
        generation: the number of the generation of members that has finished it.
        settings: all settings that its processes shared, by key, each value as JSON.
        parameters_sha256: the hash of its final parameters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    generation: Annotated[int, Field(ge=0)]
    settings: Mapping[str, str]
    parameters_sha256: str


def keep_end(folder: Place, ended: EndedRun) -> None:
    """Keep it durably in a folder of checkpoints.

    Raises:
        OSError: it cannot be written.
    """
    make_folder(folder)
    with write_durably(folder / ENDED) as file:
        file.write(ended.model_dump_json(indent=1).encode() + b"\n")


def kept_end(folder: Place) -> EndedRun | None:
    """The end that is kept there; None for none, or where nobody can read it."""
    try:
        return EndedRun.model_validate_json((folder / ENDED).read_bytes())
    except (OSError, ValidationError):
        return None


def forget_end(folder: Place) -> None:
    """Keep it no longer: the run begins anew."""
    with suppress(OSError):  # it is found again, and says what is true
        (folder / ENDED).unlink(missing_ok=True)
