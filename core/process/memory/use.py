"""The memory of this process: how much it holds, and has held at most since a moment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_SELF = Path("/proc/self")
_FORGET_THE_MOST = "5"  # proc(5): of clear_refs


class MemoryGrowth:
    """The resident memory of this process when this was made, and the most since then; unknown but on Linux.

    Pages that it shares with others count, as with all tools that tell its size.
    """

    def __init__(self) -> None:
        with suppress(OSError):  # without that the most is that of the whole life of the process
            (_SELF / "clear_refs").write_text(_FORGET_THE_MOST)
        self._before = _status("VmRSS")

    def results(self) -> dict[str, int | None]:
        """Bytes as results show them."""
        return {"before_bytes": self._before, "peak_bytes": _status("VmHWM")}


def _status(key: str) -> int | None:
    """Bytes of a line of the process's status; None where there is none."""
    try:
        lines = (_SELF / "status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)
