"""The state of a script in a checkpoint, as files that PyTorch and readers of safetensors know."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed import checkpoint as torch_checkpoint

from taihu.core.base.errors import CheckpointError
from taihu.core.base.whole_file import replaced, writing
from taihu.core.checkpoint.reading import Checkpoint
from taihu.torch.kept.contents import objects_of


def export_objects(checkpoint: Checkpoint, path: Path) -> None:
    """Write the objects of a script's checkpoint, each by its `state_dict()`.

    Args:
        checkpoint: of a script.
        path: a file `.pt` for `torch.load`, which takes it with `weights_only=True`; a file `.safetensors` of all
            tensors, by `OBJECT.NAME`; or a folder for `torch.distributed.checkpoint.load`.

    Raises:
        CheckpointError: it is damaged, or the folder is there already.
        WriteError: the file cannot be written.
    """
    objects = objects_of(checkpoint.own_of("worker 0"))
    if path.suffix == ".safetensors":
        with replaced(path) as partial:
            save_file({name: each.contiguous() for name, each in _tensors(objects)}, partial)
    elif path.suffix:
        with replaced(path) as partial:
            torch.save(objects, partial)
    elif path.exists():
        raise CheckpointError(f"{path}: is there already; name another folder")
    else:
        with writing(path), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # nobody trains here
            torch_checkpoint.save(objects, checkpoint_id=path, no_dist=True)


def _tensors(tree: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a tree by their names."""
    for key, each in tree.items():
        if isinstance(each, torch.Tensor):
            yield f"{above}{key}", each
        elif isinstance(each, (Mapping, list, tuple)):
            inner = each if isinstance(each, Mapping) else dict(enumerate(each))
            yield from _tensors(inner, f"{above}{key}.")
