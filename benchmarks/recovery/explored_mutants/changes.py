"""The wrong changes, as `changes.toml` has them: pure, but for reading that file."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taihu.core.base.errors import ConfigError

__all__ = ["AREAS", "Change", "chosen", "read_changes"]

_FILE: Final = Path(__file__).with_name("changes.toml")
AREAS: Final = ("protocol", "membership", "generations", "checkpoints", "exchange", "links", "history", "agents")
"""The parts of the daemons that are changed."""


@dataclass(frozen=True)
class Change:
    """A wrong change.

    Attributes:
        name: of the bug.
        area: one of `AREAS`.
        module: that is changed.
        old: a text that the module has exactly once.
        new: the text in its place.
        why: what bug that is, and how it shows.
    """

    name: str
    area: str
    module: str
    old: str
    new: str
    why: str

    @property
    def source(self) -> tuple[str, str, str]:
        """The change as `taihu.explore.campaign.work.Work.changes` takes it."""
        return self.module, self.old, self.new

    @property
    def agents(self) -> bool:
        """Whether it shows where agents run the workers."""
        return self.area == "agents"

    @property
    def digest(self) -> str:
        """Tells it from another one of the same name."""
        return hashlib.sha256("\0".join(self.source).encode()).hexdigest()[:12]


def read_changes(file: Path = _FILE) -> list[Change]:
    """All changes, in the order of the file."""
    return [Change(**each) for each in tomllib.loads(file.read_text())["change"]]


def chosen(changes: Sequence[Change], names: Sequence[str]) -> list[Change]:
    """Those of some names or areas; all where nothing is named.

    Raises:
        ConfigError: there is no such one.
    """
    known = {each.name for each in changes} | set(AREAS)
    if strange := sorted(set(names) - known):
        raise ConfigError(f"no change or area is called {strange[0]}; expected one of {', '.join(sorted(known))}")
    return [each for each in changes if not names or each.name in names or each.area in names]
