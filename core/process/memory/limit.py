"""The memory that this process may take: the least limit of its control group, or what the machine has."""

from __future__ import annotations

import os
from pathlib import Path

# Within a container these are the files of its own control group: version 2, version 1.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def memory_limit_bytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The limit in bytes; without one that is less, the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, *(_read(groups / name, machine) for name in _LIMITS))


def _read(path: Path, otherwise: int) -> int:
    """The number in a file; `otherwise` if there is no file, or the word `max` in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return otherwise
