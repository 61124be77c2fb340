"""State of compression for any number of workers, and for arenas of other layers than those that were exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.blocks import Block, Held, blocks_of
from taihu.core.checkpoint.part import RESIDUAL, optimizer_name
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.model.layout import Layout

LOCAL: Final = "local."
"""Begins the names of arrays of a worker's own optimizer, by which it makes local steps."""

_VELOCITY: Final = "velocity"
_MOMENTUM: Final = optimizer_name("momentum")
_OF_UNITS: Final = ("bounds", "thresholds", "ages", "kept", "rates")


def held_back_by(checkpoint: Checkpoint, rank: int, workers: int, layout: Layout) -> dict[str, NDArray[Any]]:
    """The state of compression of worker `rank`, of so many that exchange `layout`, see `CompressionState.arrays`.

    Where there were more or fewer, what all of them held back is divided anew: each gets the mean, so that the
    mean of the gradients that are sent later stays what it was. Of layers that were spread nothing was held back,
    and their velocity is the momentum that their columns had; where other layers are exchanged, all thresholds are
    made anew.

    Raises:
        CheckpointError: gradients were not compressed.
    """
    own = [_state_of(checkpoint, each) for each in _those_before(checkpoint, rank, workers)]
    held = dict(own[0])
    for name in (RESIDUAL, _VELOCITY):
        held[name] = _mean([each[name] for each in own])
    if layout != checkpoint.manifest.layout:
        held |= {name: held[name][:0] for name in _OF_UNITS if name in held}
        for name in (RESIDUAL, _VELOCITY):
            if len(held[name]):
                held[name] = _moved(checkpoint, name, held[name], layout)
    return held


def local_state_of(checkpoint: Checkpoint, rank: int, workers: int) -> dict[str, NDArray[np.float32]]:
    """The state of local steps of worker `rank` of so many, by names that begin with `LOCAL`; empty without any.

    Where there were more workers or fewer, each gets the mean of all.
    """
    own = [checkpoint.own_of(f"worker {each}") for each in _those_before(checkpoint, rank, workers)]
    names = [name for name in own[0] if name.startswith(LOCAL) and all(name in each for each in own)]
    return {name: _mean([each[name] for each in own]) for name in names}


def read_spread_state(checkpoint: Checkpoint, name: str, blocks: Iterable[Block], into: NDArray[np.float32]) -> None:
    """Fill `into` with optimizer state of layers that are spread, see `Checkpoint.read`.

    Momentum that workers applied before they compressed a layer is the mean of their velocities.

    Raises:
        CheckpointError: it is in none of the files.
    """
    wanted = list(blocks)
    if name == _MOMENTUM and name not in checkpoint.names("shared"):
        exchanged = _whole(checkpoint.manifest.layout)
        if any(block.tensor in exchanged for block in wanted):
            velocity = _mean([_state_of(checkpoint, rank)[_VELOCITY] for rank in range(checkpoint.manifest.workers)])
            _move(exchanged, velocity, wanted, into)
            wanted = [block for block in wanted if block.tensor not in exchanged]
    checkpoint.read(name, wanted, into)


def _those_before(checkpoint: Checkpoint, rank: int, workers: int) -> Iterable[int]:
    """The workers whose state worker `rank` of so many goes on with: itself, or all where they were others."""
    count = checkpoint.manifest.workers
    return [rank] if workers == count else range(count)


def _state_of(checkpoint: Checkpoint, rank: int) -> dict[str, NDArray[Any]]:
    own = checkpoint.own_of(f"worker {rank}")
    if RESIDUAL not in own:
        raise CheckpointError(
            f"{checkpoint.folder}: its gradients were not compressed; set compression.method = 'none'"
        )
    return own


def _moved(checkpoint: Checkpoint, name: str, values: NDArray[Any], layout: Layout) -> NDArray[np.float32]:
    """The values of all elements of `layout`, where those of the checkpoint's are `values`."""
    moved = np.zeros(layout.elements, dtype=np.float32)
    exchanged = _whole(checkpoint.manifest.layout)
    wanted = list(blocks_of(layout, _all(layout)))
    _move(exchanged, values, wanted, moved)
    if name == _VELOCITY and _MOMENTUM in checkpoint.names("columns"):
        checkpoint.read(_MOMENTUM, [block for block in wanted if block.tensor not in exchanged], moved)
    return moved


def _move(held: Held, values: NDArray[Any], wanted: Iterable[Block], into: NDArray[Any]) -> None:
    for overlap in held.overlaps(wanted):
        part = overlap.held.view(values, overlap.rows, overlap.columns)
        overlap.wanted.view(into, overlap.rows, overlap.columns)[...] = part


def _whole(layout: Layout) -> Held:
    return Held(blocks_of(layout, _all(layout)))


def _all(layout: Layout) -> NDArray[np.int64]:
    return np.array([[0, layout.elements]], dtype=np.int64)


def _mean(arrays: list[NDArray[Any]]) -> NDArray[np.float32]:
    return np.array(arrays[0] if len(arrays) == 1 else np.mean(arrays, axis=0, dtype=np.float64), dtype=np.float32)
