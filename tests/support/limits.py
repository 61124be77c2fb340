"""Limits of this process, for a block alone: what it may write, and open."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["largest_file", "most_files"]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """As `ulimit -f`: this process writes no larger files during the block."""
    with _limited(resource.RLIMIT_FSIZE, size_bytes):
        yield


@contextmanager
def most_files(count: int) -> Iterator[None]:
    """As `ulimit -S -n`: this process opens no file with a higher number during the block."""
    with _limited(resource.RLIMIT_NOFILE, count):
        yield


@contextmanager
def _limited(which: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)
