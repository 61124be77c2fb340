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
    match kind:
        case "flip" if data:
            return data[:at] + bytes((data[at] ^ 1 << value % 8,)) + data[at + 1 :]
        case "put" if data:
            return data[:at] + bytes((value % 256,)) + data[at + 1 :]
        case "number":
            size = (1, 2, 4, 8)[value % 4]
            number = _NUMBERS[value // 4 % len(_NUMBERS)] & (1 << 8 * size) - 1
            return data[:at] + number.to_bytes(size, "little") + data[at + size :]
        case "insert":
            return data[:at] + bytes((value % 256,)) * length + data[at:]
        case "remove":
            return data[:at] + data[at + length :]
        case "repeat":
            return data[: at + length] + data[at : at + length] * (1 + value // 64 % 64) + data[at + length :]
        case "cut":
            return data[:at]
        case "splice" if other:
            begin = len(other) * value // _PLACES
            return data[:at] + other[begin : begin + length] + data[at:]
    return data
