"""Calls of a group in words, by which ranks compare what they have called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from taihu.torch.group.sums import name_of

__all__ = ["MOST_TAG", "Words", "call_of"]

MOST_TAG: Final = 2**31 - 1
_MOST_LISTED: Final = 8


@dataclass(frozen=True)
class Words:
    """A call in words: its name, `details` that are the same on all ranks, and `sizes` of this rank's tensors."""

    what: str
    details: str = ""
    sizes: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.details}".strip()


def call_of(what: str, tensors: Sequence[Any], *, op: Any = None, root: int | None = None) -> Words:
    """The words of a call with these tensors, which reduces by `op`, and whose root is rank `root` of the group."""
    if not tensors:
        return Words(what)
    first = tensors[0]
    details = [] if op is None else [name_of(op)]
    layout = "" if first.layout is torch.strided else " sparse"
    details.append(f"of{layout} {first.dtype}")
    if root is not None:
        details.append(f"with root worker {root}")
    shapes = [tuple(tensor.shape) for tensor in tensors[:_MOST_LISTED]]
    more = "" if len(tensors) <= _MOST_LISTED else f" and {len(tensors) - _MOST_LISTED} more"
    return Words(what, " ".join(details), f"of shape {', '.join(map(str, shapes))}{more}")
