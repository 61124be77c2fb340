"""Calls of a group in words, by which ranks compare what they have called; they are put only where that is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

MOST_TAG: Final = 2**31 - 1
_MOST_LISTED: Final = 8


class Words(NamedTuple):
    """A call's name, its reduction, the type and layout of its first tensor, its root, and its tensors' shapes.

    Where all ranks have as many values, `has_same_sizes` says so: their number is a word of all ranks.
    """

    what: str
    reduction: str = ""
    dtype: Any = None
    layout: Any = None
    root: int | None = None
    shapes: Sequence[Any] = ()
    has_same_sizes: bool = False

    @property
    def common(self) -> str:
        """The words that are the same on all ranks."""
        kind = "" if self.dtype is None else f"of {'' if self.layout is torch.strided else 'sparse '}{self.dtype}"
        root = "" if self.root is None else f"with root worker {self.root}"
        count = f"of {sum(each.numel() for each in self.shapes)} values" if self.has_same_sizes else ""
        return " ".join(filter(None, (self.what, self.reduction, kind, count, root)))

    @property
    def sizes(self) -> str:
        """The shapes of this rank's tensors."""
        if not self.shapes:
            return ""
        more = "" if len(self.shapes) <= _MOST_LISTED else f" and {len(self.shapes) - _MOST_LISTED} more"
        return f"of shape {', '.join(str(tuple(each)) for each in self.shapes[:_MOST_LISTED])}{more}"


def call_of(
    what: str, tensors: Sequence[Any], *, reduction: str = "", root: int | None = None, has_same_sizes: bool = False
) -> Words:
    """The words of a call with these tensors, and whose root is rank `root` of the group."""
    if not tensors:
        return Words(what)
    first = tensors[0]
    shapes = [tensor.shape for tensor in tensors]
    return Words(what, reduction, first.dtype, first.layout, root, shapes, has_same_sizes)


@dataclass(frozen=True)
class Said:
    """A rank's call as it tells it: its `number` in the group, the `words` of all ranks, its own `sizes`."""

    number: int
    words: str
    sizes: str = ""

    def __str__(self) -> str:
        return f"{self.words} {self.sizes}".strip()


def text_of(calls: Sequence[Said]) -> str:
    """Calls as a key's value."""
    return json.dumps([(call.number, call.words, call.sizes) for call in calls])


def read_calls(text: str) -> list[Said]:
    """Calls from a key's value; raises ValueError when it is none."""
    return [Said(*each) for each in json.loads(text)]


class Call(NamedTuple):
    """A call of all ranks, the group's operation `number`."""

    number: int
    words: Words

    def said(self) -> Said:
        """The call in words."""
        return Said(self.number, self.words.common, self.words.sizes)
