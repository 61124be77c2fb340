"""Checkpoints of made-up values: of any layout, by any number of servers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taihu.checkpoint.files import write_part
from taihu.checkpoint.manifest import Manifest
from taihu.checkpoint.part import Elements, Part, State
from taihu.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.checkpoint.store import CheckpointStore
from taihu.layout import Layout
from taihu.planner.partition import Shard

NAMES = ("parameters", "optimizer.momentum")


def values_of(layout: Layout, name: str) -> NDArray[np.float32]:
    """The values that the made checkpoints hold."""
    return np.random.default_rng(NAMES.index(name)).standard_normal(layout.elements, dtype=np.float32)


def make_checkpoint(folder: Path, layout: Layout, *, servers: int, workers: int = 1, step: int = 3) -> Checkpoint:
    """A checkpoint of `step`: every server has its slices, and worker 0 a running moment."""
    store = CheckpointStore(folder)
    place = store.folder_of(step)
    files = {}
    for index in range(servers):
        bounds = Shard(layout, servers, index).bounds
        pieces = {name: [values_of(layout, name)[start:stop] for start, stop in bounds] for name in NAMES}
        arrays = {name: np.concatenate(of) if of else np.zeros(0, np.float32) for name, of in pieces.items()}
        part = Part(f"server {index}", step, State(Elements(bounds, arrays)))
        files[part.member] = write_part(place, part)
    own = {"buffers/norm/mean": np.arange(4, dtype=np.float32)}
    files["worker 0"] = write_part(place, Part("worker 0", step, State(own=own, facts={"skipped": False})))
    manifest = Manifest(
        job="made",
        settings={"train.batch": "32"},
        step=step,
        total_steps=10,
        servers=servers,
        workers=workers,
        layers=Manifest.layers_of(layout),
        groups=[(0, len(layout.layers) - 1)],
        files=Manifest.entries(files),
    )
    store.commit(manifest)
    return open_checkpoint(place)
