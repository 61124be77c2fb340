"""The lines that processes write to their logs, as they come, for who reads those of their agent."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

__all__ = ["ForwardedLogs"]


class ForwardedLogs:
    """Copies what is added to the files of a folder to a stream, whole lines at a time."""

    def __init__(self, folder: Path, stream: BinaryIO) -> None:
        self._folder = folder
        self._stream = stream
        self._read: dict[Path, int] = {}

    def forward(self, *, to_end: bool = False) -> None:
        """Copy the lines that have come; `to_end` one that has no end yet, too."""
        for path in sorted(self._folder.glob("*.log")):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                added = file.read()
            whole = added if to_end else added[: added.rfind(b"\n") + 1]
            if whole:
                self._stream.write(whole)
                self._stream.flush()
                self._read[path] = start + len(whole)
