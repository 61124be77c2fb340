"""Memory of this process: Python's collector of garbage, and the system's library, which has the rest."""

from __future__ import annotations

from ctypes import CDLL
from gc import collect as collect_garbage
from gc import disable as stop_collecting
from gc import enable as go_on_collecting
from gc import freeze as freeze_objects
from gc import isenabled as is_collecting

__all__ = ["c_library", "collect_garbage", "freeze_objects", "go_on_collecting", "is_collecting", "stop_collecting"]


def c_library() -> CDLL:
    """The system's library of C, as this process has it; its calls set `ctypes.get_errno()`.

    Raises:
        OSError, TypeError: it cannot be told here.
    """
    return CDLL(None, use_errno=True)
