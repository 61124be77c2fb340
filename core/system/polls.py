"""Waiting for files and sockets: one, or several at a time."""

from __future__ import annotations

from select import POLLIN, POLLOUT, poll, select
from typing import Protocol

__all__ = ["POLLIN", "POLLOUT", "HasNumber", "is_readable", "is_writable", "poll"]


class HasNumber(Protocol):
    """A file or socket."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


def is_readable(file: int | HasNumber, timeout_s: float | None = None) -> bool:
    """Whether reading would not wait, now or within `timeout_s`; None waits for as long as it takes."""
    return bool(select([file], [], [], timeout_s)[0])


def is_writable(file: int | HasNumber, timeout_s: float | None = None) -> bool:
    """Whether writing would not wait, now or within `timeout_s`; None waits for as long as it takes."""
    return bool(select([], [file], [], timeout_s)[1])
