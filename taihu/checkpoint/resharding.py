"""A checkpoint written anew for another number of servers and workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from taihu.checkpoint.files import PartFile, write_part
from taihu.checkpoint.manifest import Manifest
from taihu.checkpoint.part import NOTHING, PARAMETERS, Elements, Part, State
from taihu.checkpoint.reading import Checkpoint
from taihu.checkpoint.store import CheckpointStore
from taihu.errors import CheckpointError
from taihu.planner.partition import Shard

__all__ = ["reshard"]

_RESIDUAL = "residual"


def reshard(checkpoint: Checkpoint, folder: Path, *, servers: int, workers: int) -> Path:
    """Write a checkpoint as so many servers and workers would have kept it; returns its folder, in `folder`.

    Without servers worker 0 holds all of it. A run can go on from either: processes need only read their own file.

    Raises:
        CheckpointError: it is damaged, or another one is there.
        OSError: it cannot be written.
    """
    store = CheckpointStore(folder)
    place = store.folder_of(checkpoint.step)
    if place.exists():
        raise CheckpointError(f"{place}: it is there already; give another folder")
    layout = checkpoint.manifest.layout
    files: dict[str, PartFile] = {}
    for index in range(servers):
        held = _held(checkpoint, Shard(layout, servers, index).bounds)
        files[f"server {index}"] = write_part(place, Part(f"server {index}", checkpoint.step, State(held)))
    before = checkpoint.state_of("worker 0")
    for rank in range(workers):
        own = dict(before.own) if before is not None and rank == 0 else {}
        if before is not None and _RESIDUAL in before.own:
            own |= checkpoint.held_back_by(rank, workers)
        whole = np.array([[0, layout.elements]], dtype=np.int64)
        held = NOTHING if servers or rank else _held(checkpoint, whole)
        facts = before.facts if before is not None and rank == 0 else {}
        if own or held.arrays or rank == 0:
            part = Part(f"worker {rank}", checkpoint.step, State(held, own, facts))
            files[part.member] = write_part(place, part)
    counts = {"servers": servers, "workers": workers, "files": Manifest.entries(files)}
    store.commit(checkpoint.manifest.model_copy(update=counts))
    return place


def _held(checkpoint: Checkpoint, bounds: np.ndarray) -> Elements:
    """All arrays of elements, parameters first, of these ranges."""
    count = int(np.diff(bounds).sum())
    arrays = {name: np.empty(count, dtype=np.float32) for name in sorted(checkpoint.shared_names(), key=_by_name)}
    for name, array in arrays.items():
        checkpoint.read_shared(name, bounds, array)
    return Elements(bounds, arrays)


def _by_name(name: str) -> tuple[bool, str]:
    return name != PARAMETERS, name
