"""Notices of files that a process cannot write, each once: in its log, and to whoever started it and reads along."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Final

import structlog

_MARK: Final = "warning: "


class Notices:
    """Says that something could not be written, and that the run goes on; any thread may call.

    Args:
        are_read: whether the process that started this one reads standard output, and shows what it says there.
    """

    def __init__(self, *, are_read: bool = False) -> None:
        self._are_read = are_read
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Say a line, once."""
        if text in self._said:
            return
        self._said.add(text)
        structlog.get_logger().warning(text)
        stream = sys.__stdout__
        if self._are_read and stream is not None:
            stream.write(f"{_MARK}{text}\n")
            stream.flush()


def read_notices(stream: IO[bytes]) -> Iterator[str]:
    """The lines of `Notices` that have come through a pipe, which does not wait; others are left out."""
    for line in (stream.read() or b"").decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            yield line.removeprefix(_MARK)
