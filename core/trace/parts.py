"""Part files: the events of one process on their way from its tracer to the merged trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from taihu.core.base.whole_file import write_text

NS_PER_S: Final = 10**9
NS_PER_US: Final = 10**3
_FORMAT: Final = "taihu trace part 1"


class Event(NamedTuple):
    """One row of a part file; times in nanoseconds of the coordinator's clock."""

    track: str
    name: str
    start: int
    stop: int
    step: int | None
    group: int | None
    peer: int | None

    @property
    def order(self) -> tuple[int, int]:
        """Earlier first; of those that start together the longer one, which then encloses the other."""
        return self.start, -self.stop


class TracePart(NamedTuple):
    """The events of one process; `clock_error_s` bounds the error of their times, None where it is unknown."""

    sort_index: int
    process: str
    dropped: int
    clock_error_s: float | None
    events: tuple[Event, ...]


def write_part(path: Path, part: TracePart) -> None:
    """Write the file of one process.

    Raises:
        WriteError: the file cannot be written.
    """
    write_trace(path, {"format": _FORMAT, **part._asdict()})


def read_part(path: Path) -> TracePart:
    """The part that `write_part` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError, KeyError, TypeError: it holds something else, or not all of a part.
    """
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"expected the format {_FORMAT!r}")
    events = tuple(Event(*row) for row in content["events"])
    return TracePart(content["sort_index"], content["process"], content["dropped"], content["clock_error_s"], events)


def write_trace(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` as JSON without spaces.

    Raises:
        WriteError: the file cannot be written.
    """
    write_text(path, json.dumps(content, separators=(",", ":")))
