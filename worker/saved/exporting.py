"""The model of a checkpoint as a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taihu.core.base.errors import CheckpointError
from taihu.core.base.tensor_file import TensorSlot, header_of, write_values
from taihu.core.base.whole_file import replaced
from taihu.core.checkpoint.reading import Checkpoint
from taihu.worker.saved.metadata import SavedModel, parse_metadata
from taihu.worker.saved.sources import CheckpointSource
from taihu.worker.saved.writing import METADATA_KEY

_DESCRIPTION: Final = "model"


def export_model(checkpoint: Checkpoint, path: Path) -> None:
    """Write the model of a checkpoint, one tensor after the other, as `taihu train --save` would have.

    Raises:
        CheckpointError: it is damaged, or its model cannot be saved.
        ModelError: the file cannot be written.
    """
    told = checkpoint.facts_of("worker 0").get(_DESCRIPTION)
    if not isinstance(told, str):
        raise CheckpointError(f"{checkpoint.folder}: it does not say what builds its model: that cannot be saved")
    saved = parse_metadata(told).model_copy(update={"steps": checkpoint.step})
    source = CheckpointSource(checkpoint)
    slots = {name: TensorSlot(shape) for name, shape in source.shapes.items()}
    with replaced(path) as partial, partial.open("wb") as file:
        file.write(header_of(slots, {METADATA_KEY: saved.to_metadata()}))
        for name in slots:
            write_values(file, source.read(name))


def description_of(saved: SavedModel) -> dict[str, str]:
    """The fact by which worker 0 says what builds the model, for `export_model`."""
    return {_DESCRIPTION: saved.to_metadata()}
