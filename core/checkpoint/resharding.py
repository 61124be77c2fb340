"""A checkpoint written anew for another number of servers and workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.blocks import Block, blocks_of
from taihu.core.checkpoint.files import PartFile, write_part
from taihu.core.checkpoint.held_back import held_back_by, local_state_of
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import (
    NO_COLUMNS,
    NOTHING,
    PARAMETERS,
    RESIDUAL,
    Columns,
    Elements,
    Part,
    SpreadLayer,
    State,
    column_blocks,
)
from taihu.core.checkpoint.places import Place
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.model.layout import Layout
from taihu.core.planner.partition import Shard, slice_bounds


def reshard(checkpoint: Checkpoint, folder: Place, *, servers: int, workers: int) -> Place:
    """Write a checkpoint as so many servers and workers would have kept it; returns its folder, in `folder`.

    Without servers worker 0 holds all that is exchanged. Layers that are spread stay so, if there are enough columns
    for all workers, and more than one worker. A run can go on from either: processes need only read their own file.

    Raises:
        CheckpointError: it is damaged, or another one is there.
        OSError: it cannot be written.
    """
    store = CheckpointStore(folder)
    place = store.folder_of(checkpoint.step)
    if place.exists():
        raise CheckpointError(f"{place}: it is there already; give another folder")
    spread = _spread(checkpoint, workers)
    names = {each.layer.name for each in spread}
    layout = Layout(tuple(layer for layer in checkpoint.layout.layers if layer.name not in names))
    files: dict[str, PartFile] = {}
    for index in range(servers):
        held = _held(checkpoint, layout, Shard(layout, servers, index).bounds)
        files[f"server {index}"] = write_part(place, Part(f"server {index}", checkpoint.step, State(held)))
    for rank in range(workers):
        state = _of_worker(checkpoint, layout, rank, workers, holds=not servers and rank == 0)
        state = replace(state, columns=_columns(checkpoint, spread, rank, workers))
        if not state.is_empty or rank == 0:
            part = Part(f"worker {rank}", checkpoint.step, state)
            files[part.member] = write_part(place, part)
    changes: dict[str, Any] = {"servers": servers, "workers": workers, "files": Manifest.entries(files)}
    if layout != checkpoint.manifest.layout:
        changes |= {"layers": Manifest.layers_of(layout), "groups": [(0, len(layout.layers) - 1)]}
    store.commit(checkpoint.manifest.model_copy(update=changes))
    return place


def _spread(checkpoint: Checkpoint, workers: int) -> list[SpreadLayer]:
    """The layers that so many workers have columns of each."""
    return [each for each in checkpoint.spread if 1 < workers <= each.layer.tensors[0].shape[-1]]


def _of_worker(checkpoint: Checkpoint, layout: Layout, rank: int, workers: int, *, holds: bool) -> State:
    """The state of a worker without its columns; it `holds` all that is exchanged where no servers do."""
    before = checkpoint.own_of("worker 0")
    own = dict(before) if rank == 0 else {}
    if RESIDUAL in before:
        own |= held_back_by(checkpoint, rank, workers, layout)
    own |= local_state_of(checkpoint, rank, workers)
    whole = np.array([[0, layout.elements]], dtype=np.int64)
    held = _held(checkpoint, layout, whole) if holds else NOTHING
    return State(held, own, checkpoint.facts_of("worker 0") if rank == 0 else {})


def _columns(checkpoint: Checkpoint, spread: Sequence[SpreadLayer], rank: int, workers: int) -> Columns:
    """The columns of a worker, with all arrays."""
    if not spread:
        return NO_COLUMNS
    widths = [each.layer.tensors[0].shape[-1] for each in spread]
    own = tuple(
        replace(each, columns=range(*slice_bounds(width, workers, rank)))
        for each, width in zip(spread, widths, strict=True)
    )
    blocks = list(column_blocks(own))
    names = checkpoint.names("columns")
    return Columns(own, _read(checkpoint, names, blocks))


def _held(checkpoint: Checkpoint, layout: Layout, bounds: NDArray[np.int64]) -> Elements:
    """All arrays of elements, parameters first, of these ranges."""
    names = checkpoint.names("shared")
    return Elements(bounds, _read(checkpoint, names, list(blocks_of(layout, bounds))))


def _read(checkpoint: Checkpoint, names: Iterable[str], blocks: Sequence[Block]) -> dict[str, NDArray[np.float32]]:
    arrays = {}
    for name in sorted(names, key=_by_name):
        arrays[name] = np.empty(sum(block.elements for block in blocks), dtype=np.float32)
        checkpoint.read(name, blocks, arrays[name])
    return arrays


def _by_name(name: str) -> tuple[bool, str]:
    return name != PARAMETERS, name
