"""The manifest of a checkpoint: of which run and step it is, and which files belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from taihu.core.base.errors import CheckpointError
from taihu.core.base.words import told
from taihu.core.checkpoint.files import PartFile
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec

MANIFEST: Final = "manifest.json"
"""The name of the file; a checkpoint without one does not count."""

SCRIPT: Final = {"script": "1"}
"""The settings in the manifest of a script's checkpoint, by which no other run takes it for its own."""

_Count = Annotated[int, Field(ge=0)]
_FileName = Annotated[str, Field(pattern=r"^[a-z]+-[0-9]+\.safetensors$")]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(_Strict):
    """A file of the checkpoint, in its folder."""

    name: _FileName
    size_bytes: _Count
    sha256: _Sha256


class Manifest(_Strict):
    """The run and step of a checkpoint, and its files.

    Attributes:
        job: the name of the job.
        settings: all settings that its processes shared, by key, each value as JSON.
        step: the last one that all parameters have been updated by; `total_steps` of the run, as it was planned.
        servers, workers: how many there were.
        layers: of the model, in backward order: names, and names and shapes of their tensors.
        groups: of the plan, each by its first and last layer.
        files: by member, of those that had something to keep.
    """

    format: Literal[1] = 1
    job: str
    settings: Mapping[str, str]
    step: _Count
    total_steps: _Count
    servers: _Count
    workers: _Count
    layers: list[tuple[str, list[tuple[str, list[_Count]]]]]
    groups: list[tuple[_Count, _Count]]
    files: Mapping[str, FileEntry]

    @property
    def layout(self) -> Layout:
        """The model's layers."""
        return Layout(
            tuple(
                LayerSpec(name, tuple(TensorSpec(tensor, tuple(shape)) for tensor, shape in tensors))
                for name, tensors in self.layers
            )
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size_bytes for entry in self.files.values())

    @staticmethod
    def entries(files: Mapping[str, PartFile]) -> dict[str, FileEntry]:
        """The entries of written files."""
        return {member: FileEntry(**file._asdict()) for member, file in sorted(files.items())}

    @staticmethod
    def layers_of(layout: Layout) -> list[tuple[str, list[tuple[str, list[int]]]]]:
        """`layers` of a layout."""
        return [(layer.name, [(t.name, list(t.shape)) for t in layer.tensors]) for layer in layout.layers]

    def to_json(self) -> str:
        """The text of the file."""
        return self.model_dump_json(indent=1) + "\n"


def parse_manifest(text: str | bytes) -> Manifest:
    """The manifest of a file's text.

    Raises:
        CheckpointError: it is damaged, or of another format.
    """
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise CheckpointError(told(f"damaged manifest: {place}: {first['msg']}")) from None
