"""Faults that have happened in a run: a file for each, so that none happens again where a process is replaced."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from taihu.core.system.chance import random_hex
from taihu.core.system.clocks import sleep
from taihu.core.wire.base.clock import WallClock

_BEGUN: Final = "begun"
_DONE: Final = ".json"
_ASKED: Final = ".asked"


class ChaosMemory:
    """A folder that all processes of a run see; any process, and any thread, may call.

    Args:
        folder: made when it is needed.
        wall: the machine's time, which all processes have; no fault moves it.
    """

    def __init__(self, folder: Path, wall: WallClock | None = None) -> None:
        self.folder = folder
        self._wall = wall or WallClock()

    def begun_s(self) -> float:
        """The run's beginning, seconds since 1970: when the first process asked.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self.folder / _BEGUN
        with suppress(FileExistsError):
            self._create(path, repr(self._wall.now()))
        for _ in range(100):
            with suppress(ValueError):  # another process is about to write it
                return float(path.read_text(encoding="ascii"))
            sleep(0.01)
        return path.stat().st_mtime

    def age_s(self) -> float:
        """The seconds since the run's beginning; raises what `begun_s` does."""
        begun_s = self.begun_s()
        return self._wall.now() - begun_s

    def claim(self, name: str, **told: object) -> bool:
        """Whether the fault `name` has not happened yet; it has from now on, with what is `told` of it.

        Raises:
            OSError: the folder cannot be written.
        """
        try:
            self._create(self.folder / f"{name}{_DONE}", json.dumps({"time": self._wall.now(), **told}) + "\n")
        except FileExistsError:
            return False
        return True

    @property
    def has_begun(self) -> bool:
        """Whether a process of the run has asked for its beginning."""
        return (self.folder / _BEGUN).exists()

    def ask(self, fault: str) -> str:
        """Ask the run's processes for a fault in words; returns its name. OSError where that cannot be written."""
        name = f"asked-{random_hex(4)}"
        partial = self.folder / f".{name}.partial"
        self._create(partial, fault)
        partial.rename(self.folder / f"{name}{_ASKED}")
        return name

    def asked(self) -> dict[str, str]:
        """The faults in words that were asked for, by name."""
        found: dict[str, str] = {}
        for path in sorted(self.folder.glob(f"*{_ASKED}")):
            with suppress(OSError):  # removed since
                found[path.name.removesuffix(_ASKED)] = path.read_text(encoding="utf-8")
        return found

    def happened(self) -> dict[str, dict[str, Any]]:
        """Notes on each fault that has happened, by its name."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.folder.glob(f"*{_DONE}")):
            with suppress(ValueError):
                found[path.name.removesuffix(_DONE)] = dict(json.loads(path.read_text(encoding="utf-8")))
        return found

    def _create(self, path: Path, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
