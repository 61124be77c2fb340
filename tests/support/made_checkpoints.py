"""Checkpoints of made-up values: of any layout, by any number of servers, with any layers spread over workers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.checkpoint.files import write_part
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import NO_COLUMNS, NOTHING, Columns, Elements, Part, SpreadLayer, State
from taihu.core.checkpoint.places import Place
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.model.layout import Layout
from taihu.core.planner.partition import Shard

__all__ = [
    "NAMES",
    "column_ranges",
    "columns_of",
    "held_back",
    "make_checkpoint",
    "tensors_of",
    "values_of",
    "without",
]

NAMES = ("parameters", "optimizer.momentum")


def values_of(layout: Layout, name: str) -> NDArray[np.float32]:
    """The values that the made checkpoints hold."""
    return np.random.default_rng(NAMES.index(name)).standard_normal(layout.elements, dtype=np.float32)


def tensors_of(layout: Layout, name: str) -> dict[tuple[str, str], NDArray[np.float32]]:
    """These values by layer and tensor."""
    specs = [(layer.name, tensor) for layer in layout.layers for tensor in layer.tensors]
    pieces = np.split(values_of(layout, name), np.cumsum([tensor.elements for _, tensor in specs])[:-1])
    return {
        (layer, tensor.name): piece.reshape(tensor.shape)
        for (layer, tensor), piece in zip(specs, pieces, strict=True)
    }


def without(layout: Layout, spread: Collection[str]) -> Layout:
    """The layers that are exchanged."""
    return Layout(tuple(layer for layer in layout.layers if layer.name not in spread))


def arena_of(layout: Layout, name: str, spread: Collection[str]) -> NDArray[np.float32]:
    """The values of the layers that are exchanged, one after the other."""
    kept = [values.reshape(-1) for (layer, _), values in tensors_of(layout, name).items() if layer not in spread]
    return np.concatenate([np.zeros(0, np.float32), *kept])


def column_ranges(units: int, workers: int) -> list[range]:
    """The columns of each worker."""
    stops = [units * rank // workers for rank in range(workers + 1)]
    return list(map(range, stops[:-1], stops[1:]))


def columns_of(layout: Layout, spread: Collection[str], rank: int, workers: int) -> Columns:
    """A worker's columns of the layers that are spread."""
    layers = tuple(
        SpreadLayer(layer, position, column_ranges(layer.tensors[0].shape[-1], workers)[rank])
        for position, layer in enumerate(layout.layers)
        if layer.name in spread
    )
    if not layers:
        return NO_COLUMNS
    arrays = {
        name: np.concatenate(
            [
                tensors_of(layout, name)[each.layer.name, tensor.name][..., each.columns].reshape(-1)
                for each in layers
                for tensor in each.layer.tensors
            ]
        )
        for name in NAMES
    }
    return Columns(layers, arrays)


def held_back(exchanged: Layout, rank: int) -> dict[str, NDArray[Any]]:
    """The state of compression of a worker: a unit for each layer."""
    generator = np.random.default_rng([7, rank])
    values = generator.standard_normal((2, exchanged.elements), dtype=np.float32)
    offsets = np.array(exchanged.offsets)
    units = len(exchanged.layers)
    return {
        "residual": values[0],
        "velocity": values[1],
        "bounds": np.stack([offsets[:-1], offsets[1:]], axis=1),
        "thresholds": generator.random(units, dtype=np.float32),
        "ages": np.arange(units),
        "kept": np.arange(units) + rank,
    }


def make_checkpoint(
    folder: Place,
    layout: Layout,
    *,
    servers: int,
    workers: int = 1,
    step: int = 3,
    spread: Collection[str] = (),
    compressed: bool = False,
) -> Checkpoint:
    """A checkpoint of `step`: every server has its slices, every worker its columns, and worker 0 a running moment.

    Without servers worker 0 has all that is exchanged. Where gradients are `compressed` workers apply momentum to
    what is exchanged, and each has what `held_back` says.
    """
    store = CheckpointStore(folder)
    place = store.folder_of(step)
    exchanged = without(layout, spread)
    arenas = {name: arena_of(layout, name, spread) for name in NAMES if name == "parameters" or not compressed}

    def held(bounds: NDArray[np.int64]) -> Elements:
        pieces = {name: [arena[start:stop] for start, stop in bounds] for name, arena in arenas.items()}
        return Elements(bounds, {name: np.concatenate([np.zeros(0, np.float32), *of]) for name, of in pieces.items()})

    parts = [
        Part(f"server {index}", step, State(held(Shard(exchanged, servers, index).bounds)))
        for index in range(servers)
    ]
    whole = NOTHING if servers else held(np.array([[0, exchanged.elements]]))
    own = {"buffers/norm/mean": np.arange(4, dtype=np.float32)}
    for rank in range(workers if spread or compressed else 1):
        state = State(
            NOTHING if rank else whole,
            ({} if rank else own) | (held_back(exchanged, rank) if compressed else {}),
            {} if rank else {"skipped": False},
            columns_of(layout, spread, rank, workers),
        )
        parts.append(Part(f"worker {rank}", step, state))
    manifest = Manifest(
        job="made",
        settings={"train.batch": "32"},
        step=step,
        total_steps=10,
        servers=servers,
        workers=workers,
        layers=Manifest.layers_of(exchanged),
        groups=[(0, len(exchanged.layers) - 1)],
        files=Manifest.entries({part.member: write_part(place, part) for part in parts}),
    )
    store.commit(manifest)
    return open_checkpoint(place)
