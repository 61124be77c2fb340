"""The facts of this host, for a launcher that has reached it."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from taihu.core import __version__
from taihu.hosts.likeness import HostFacts
from taihu.launch.interfaces import own_interfaces


def facts_of(script: Path, *, has_folder: bool) -> HostFacts:
    """The facts of this host."""
    return HostFacts(
        taihu=__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_version("torch"),
        has_folder=has_folder,
        script=digest_of(script) if has_folder else None,
        interfaces=tuple(own_interfaces()),
        cores=len(os.sched_getaffinity(0)),
    )


def digest_of(path: Path) -> str | None:
    """The SHA-256 of a file; None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
