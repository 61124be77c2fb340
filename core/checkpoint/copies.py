"""Copies of what a worker holds, with the coordinator: they stand in for it where its host is lost.

A worker whose part of a checkpoint is small, running moments or nothing but words, brings it behind each step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from taihu.core.base.errors import CheckpointError, FrameError
from taihu.core.checkpoint.files import open_part
from taihu.core.checkpoint.held_steps import MOST_HELD, Label
from taihu.core.checkpoint.part import State

MOST_BYTES: Final = 1 << 20
"""A part that is larger is not copied: it would take a share of the link that steps need."""


class Copies:
    """The copies of one generation at a time, by members and steps."""

    def __init__(self) -> None:
        self._generation = 0
        self._parts: dict[str, dict[int, bytes]] = {}
        self._staying: dict[str, int] = {}

    def put(self, member: str, label: Label, part: bytes, *, stays: bool) -> None:
        """Take the part of a member behind a step; where it `stays`, it is that of all later ones, too.

        Raises:
            FrameError: it is too large.
        """
        if len(part) > MOST_BYTES:
            raise FrameError(f"{member}: a copy of {len(part):,} bytes, expected at most {MOST_BYTES:,}")
        if label.generation != self._generation:
            self._generation = label.generation
            self._parts, self._staying = {}, {}
        steps = self._parts.setdefault(member, {})
        steps[label.step] = part
        for old in sorted(steps)[:-MOST_HELD]:
            del steps[old]
        if stays:
            self._staying[member] = label.step

    def covers(self, member: str) -> bool:
        """Whether there is a copy of any step of a member."""
        return member in self._parts

    def has(self, member: str, label: Label) -> bool:
        """Whether there is one of this step."""
        return label.generation == self._generation and self._source(member, label.step) is not None

    def state_of(self, member: str, label: Label) -> State:
        """The state of a member behind a step.

        Raises:
            CheckpointError: there is no copy of it, or it is damaged.
        """
        source = self._source(member, label.step) if self.has(member, label) else None
        if source is None:
            raise CheckpointError(f"{member}: no copy of step {label.step}")
        with tempfile.TemporaryDirectory(prefix="taihu-copy-") as folder:
            path = Path(folder) / "part"
            path.write_bytes(self._parts[member][source])
            with open_part(path) as stored:
                return stored.state().copy()

    def _source(self, member: str, step: int) -> int | None:
        """The step whose copy is that of `step`."""
        staying = self._staying.get(member)
        if staying is not None and step >= staying:
            return staying
        return step if step in self._parts.get(member, {}) else None
