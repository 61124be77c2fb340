"""Tensors that go from ranks to ranks as they are, contiguous or not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from taihu.torch.group.operations.bits import bytes_of
from taihu.torch.group.operations.exchange import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator

Tensors = Sequence[Any]


@contextmanager
def in_place(tensor: Any) -> Iterator[Any]:
    """A contiguous tensor with the values of `tensor`, which gets those that are there after the block."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        yield tensor
        return
    copy = tensor.contiguous()
    yield copy
    tensor.copy_(copy)


def filled(tensors: Tensors) -> list[Any]:
    """Contiguous tensors like these to write to."""
    flat = [tensor.detach() for tensor in tensors]
    return [tensor if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in flat]


def swap_tensors(turn: Turn, sends: Sequence[Tensors], receives: Sequence[Tensors]) -> None:
    """Send each rank its tensors of `sends`, and receive those of each in `receives`, the own ones too."""
    sent = [[bytes_of(tensor.detach().contiguous()) for tensor in each] for each in sends]
    places = [filled(each) for each in receives]
    for place, own in zip(places[turn.rank], sends[turn.rank], strict=True):
        place.copy_(own.detach().view_as(place) if own.is_contiguous() else own.detach().reshape(place.shape))
    turn.swap(sent, [[bytes_of(place) for place in each] for each in places])
    for tensors, each in zip(receives, places, strict=True):
        for tensor, place in zip(tensors, each, strict=True):
            if not tensor.is_contiguous():
                tensor.detach().copy_(place)


def broadcast(turn: Turn, tensor: Any, root: int) -> None:
    """Replace `tensor` on all ranks by that of rank `root`."""
    with in_place(tensor) as contiguous:
        turn.broadcast(bytes_of(contiguous), root)
