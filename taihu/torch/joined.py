"""The end of a block of `join()`: everybody has what the worker with most batches has come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from taihu.torch.gradients.exchanged import Optimized
from taihu.torch.kept.tree import arrays_and_words, from_arrays_and_words
from taihu.torch.world import World


def bring_all(world: World, optimized: Sequence[Optimized], root: int) -> None:
    """Have worker `root`'s parameters, buffers and states of optimizers; all workers call this together.

    Args:
        world: the workers.
        optimized: the optimizers, which are there on all workers.
        root: a worker.
    """
    tensors: dict[int, torch.Tensor] = {}
    for each in optimized:
        model = each.model
        own = each.own() if model is None else [*model.parameters(), *model.buffers(), *each.own()]
        tensors |= {id(tensor): tensor for tensor in own}
    world.bring([*tensors.values()], root)
    for each in optimized:
        if (optimizer := each.optimizer) is not None and not world.served:
            state = _brought(world, optimizer.state_dict() if world.rank == root else None, root)
            if world.rank != root:
                optimizer.load_state_dict(state)


def _brought(world: World, state: dict[str, Any] | None, root: int) -> Any:
    """Worker `root`'s state of an optimizer, which is `state` there."""
    arrays, words = arrays_and_words(state, "optimizer")
    raw = {name: torch.from_numpy(array).reshape(-1).view(torch.uint8) for name, array in arrays.items()}
    told = json.dumps([words, [[name, len(each)] for name, each in raw.items()]]).encode()
    length = torch.tensor([len(told)])
    world.bring([length], root)
    text = torch.empty(int(length), dtype=torch.uint8)
    if world.rank == root:
        text.copy_(torch.from_numpy(np.frombuffer(told, dtype=np.uint8).copy()))
    world.bring([text], root)
    words, sizes = json.loads(text.numpy().tobytes())
    values = raw if world.rank == root else {name: torch.empty(size, dtype=torch.uint8) for name, size in sizes}
    world.bring([*values.values()], root)
    return from_arrays_and_words({name: each.numpy() for name, each in values.items()}, words)
