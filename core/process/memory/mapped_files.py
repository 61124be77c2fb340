"""Files of memory that several processes map."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.system.mappings import MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE, MappedMemory

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - opened with O_EXCL, or checked before use
"""The folder whose files are memory of this host: they outlive processes, not the host."""

OPEN_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Whether there is a file or folder of this user, of the kind that `is_kind` tells by its mode."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return is_kind(status.st_mode) and status.st_uid == os.geteuid()


def make_mapped(path: Path, size: int) -> NDArray[np.uint8]:
    """Make and map a file of zeros, all of its memory reserved; shape (size,).

    Raises:
        OSError: there is one, or there is no room. Nothing is left behind.
    """
    file = os.open(path, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Without a reservation, writing to a full /dev/shm would end the process by SIGBUS.
        os.posix_fallocate(file, 0, size)
        return map_file(file, size)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def map_file(file: int, size: int) -> NDArray[np.uint8]:
    """Map an open file, shape (size,); the mapping goes with the last view of it."""
    # Populated now, so that no step of the training pays for page faults.
    mapping = MappedMemory(file, size, flags=MAP_SHARED | MAP_POPULATE, prot=PROT_READ | PROT_WRITE)
    return np.frombuffer(mapping, dtype=np.uint8)


def boot_id() -> str:
    """The identity of this machine since it was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
