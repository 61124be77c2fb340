"""Orders to a host, and words from there: one JSON object a line, over the streams of ssh. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

MARK: Final = b"taihu-host "
"""The beginning of each line from a host: what a login shell writes on its own has none."""

FOLDER: Final = "\0folder"
"""Stands in orders for the folder in which processes find and leave files: no argument holds it otherwise."""

SUPERVISOR: Final = "\0supervisor"
"""Stands in orders for the number of the process that carries them out."""

BEAT_S: Final = 5.0
"""The time between two signs of life of the launcher."""

SILENCE_S: Final = 60.0
"""The time after which a launcher that says nothing is taken for lost, with its connection."""


def frame(words: Mapping[str, Any]) -> bytes:
    """A line."""
    return MARK + json.dumps(words).encode() + b"\n"


def text_of(content: bytes) -> str:
    """Bytes as a text of a line."""
    return base64.b64encode(content).decode()


def bytes_in(text: str) -> bytes:
    """The bytes that `text_of` has made a text of."""
    return base64.b64decode(text)


class Lines:
    """Puts lines together from pieces of a stream."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """The objects of all lines that `piece` ends; lines of others are left out."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(MARK):
                words: dict[str, Any] = json.loads(line[len(MARK) :])
                yield words
