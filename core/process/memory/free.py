"""Memory that this machine has left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from taihu.core.base.errors import ConfigError


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process can still take: of the machine, and of its memory cgroups, version 1 or 2.

    Page cache that can be dropped counts as free. `root` is where `proc` and `sys` are found.

    Raises:
        ConfigError: the system does not tell.
    """
    found = re.search(r"^MemAvailable: *(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    if found is None:
        raise ConfigError("/proc/meminfo does not tell what is free; give --free-worker and --free-server")
    return min((int(found[1]) * 1024, *_left_by_cgroups(root)))


def _left_by_cgroups(root: Path) -> Iterator[int]:
    """Bytes that the memory cgroups of this process leave, each limit on its own."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left_below(mount, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_below(mount / "memory", path, names)


def _left_below(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """Bytes that are left by the group at `path` and by those that it belongs to.

    In a container `path` may be one of the host, of which only `mount` itself can be seen.
    """
    group = PurePosixPath(path.lstrip("/"))
    limit_file, used_file, cache = names
    for part in (group, *group.parents):
        limit, used = _read(mount / part / limit_file).strip(), _read(mount / part / used_file).strip()
        if limit.isdecimal() and used.isdecimal():
            dropped = re.search(rf"^{cache} (\d+)$", _read(mount / part / "memory.stat"), re.MULTILINE)
            yield max(0, int(limit) - int(used) + (int(dropped[1]) if dropped else 0))


def _read(path: Path) -> str:
    """The text of the file; nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
