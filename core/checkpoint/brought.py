"""Steps that a member of another host than the coordinator's held, as parts in the folder of checkpoints.

Whoever asks for the next generation brings them first: `taihu.core.checkpoint.salvage` finds what all have brought.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from taihu.core.checkpoint.files import PartFile, file_name, write_part
from taihu.core.checkpoint.held_steps import Held, Label
from taihu.core.checkpoint.manifest import FileEntry, Manifest
from taihu.core.checkpoint.part import Part
from taihu.core.checkpoint.places import Place, write_durably
from taihu.core.checkpoint.store import CheckpointStore

__all__ = ["Brought", "bring_steps", "brought_by"]

_Number = Annotated[int, Field(ge=0)]


class BroughtStep(BaseModel):
    """A step of a generation, and the file of the member's part."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    generation: _Number
    step: _Number
    file: FileEntry


class Brought(BaseModel):
    """The note of a member on what it has brought, the newest step first, of this run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    run: Manifest
    steps: list[BroughtStep]

    def files(self) -> dict[Label, PartFile]:
        """The files by the labels of their steps."""
        return {Label(each.generation, each.step): PartFile(**each.file.model_dump()) for each in self.steps}


def bring_steps(folder: Place, member: str, held: Mapping[Label, Held]) -> None:
    """Write the parts of a member into the folder of checkpoints, and a note on all of them.

    Raises:
        OSError: they cannot be written.
    """
    steps = []
    for label in sorted(held, reverse=True):
        part = Part(member, label.step, held[label].state)
        file = write_part(CheckpointStore(folder).folder_of(label.step), part)
        entry = FileEntry(**file._asdict())
        steps.append(BroughtStep(generation=label.generation, step=label.step, file=entry))
    if steps:
        run = next(iter(held.values())).run
        with write_durably(_note(folder, member)) as note:
            note.write(Brought(run=run, steps=steps).model_dump_json().encode() + b"\n")


def brought_by(folder: Place, member: str) -> Brought | None:
    """The note of a member; None where there is none, or none that can be read."""
    try:
        return Brought.model_validate_json(_note(folder, member).read_bytes())
    except (OSError, ValidationError):
        return None


def _note(folder: Place, member: str) -> Place:
    return folder / f"held-{file_name(member).removesuffix('.safetensors')}.json"
