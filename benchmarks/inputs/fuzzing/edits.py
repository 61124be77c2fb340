"""Small changes of an input: what an accident or somebody hostile would do to it. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["KINDS", "Edit", "drawn", "edited"]

KINDS: Final = ("flip", "put", "number", "insert", "remove", "repeat", "cut", "splice")
LARGEST: Final = 1 << 16
"""The most bytes of an input."""
_NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_PLACES: Final = 1 << 16


class Edit(NamedTuple):
    """A change of `kind` at `place` of 65536 of the input, by `value`, 0 to 65535."""

    kind: str
    place: int
    value: int


def drawn(random_: random.Random, most: int = 6) -> list[Edit]:
    """Some edits."""
    return [
        Edit(random_.choice(KINDS), random_.randrange(_PLACES), random_.randrange(_PLACES))
        for _ in range(random_.randint(1, most))
    ]


def edited(data: bytes, edits: Sequence[Edit], other: bytes = b"") -> bytes:
    """`data` with all edits, one after another; parts of `other` are spliced in."""
    for edit in edits:
        at = len(data) * edit.place // _PLACES
        data = _edited(data, edit, at, other)[:LARGEST]
    return data


def _edited(data: bytes, edit: Edit, at: int, other: bytes) -> bytes:
    kind, _, value = edit
    length = 1 + value % 32
    stop = at + 1
    match kind:
        case "flip":
            new = bytes(each ^ 1 << value % 8 for each in data[at:stop])
        case "put":
            new = bytes((value % 256,)) * bool(data)
        case "number":
            size = (1, 2, 4, 8)[value % 4]
            new = (_NUMBERS[value // 4 % len(_NUMBERS)] & (1 << 8 * size) - 1).to_bytes(size, "little")
            stop = at + size
        case "insert":
            new, stop = bytes((value % 256,)) * length, at
        case "remove":
            new, stop = b"", at + length
        case "repeat":
            new, stop = data[at : at + length] * (2 + value // 64 % 64), at + length
        case "cut":
            new, stop = b"", len(data)
        case _:
            begin = len(other) * value // _PLACES
            new, stop = other[begin : begin + length], at
    return data[:at] + new + data[stop:]
