"""Sockets as kernels use them: what can be sent or received at once, and waiting for two of them. Linux, 64 bits."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import types
from numpy.typing import NDArray

from taihu.kernels.base.external import external
from taihu.kernels.base.jit import kernel_part
from taihu.kernels.base.memory import memory_at

CALL_WORDS: Final = 7
"""The length of the int64 array in which a call describes its memory."""
MOST_PLACES: Final = 1024
"""The most places of memory that a call takes."""
ENDED: Final = -1
"""The other side has ended its direction."""
BROKEN: Final = -2
"""The connection is broken."""
CAN_RECEIVE: Final = 1
CAN_SEND: Final = 4

_DONT_WAIT: Final = 0x40
_NO_SIGNAL: Final = 0x4000
_AGAIN: Final = (4, 11)  # EINTR, EAGAIN
_LOW: Final = 0xFFFFFFFF

_recvmsg = external("recvmsg", types.int64(types.int32, types.intp, types.int32))
_sendmsg = external("sendmsg", types.int64(types.int32, types.intp, types.int32))
_poll = external("poll", types.int32(types.intp, types.uint64, types.int32))
_errno_location = external("__errno_location", types.intp())

Words = NDArray[np.int64]
Places = NDArray[np.int64]


@kernel_part
def _describe(call: Words, places: Places) -> None:
    # A C msghdr.
    call[:] = 0
    call[2], call[3] = places.ctypes.data, len(places)


@kernel_part
def _failure() -> int:
    """0 if a call would have had to wait, else `BROKEN`."""
    errno = memory_at(_errno_location(), 1, np.int32)[0]
    return 0 if errno == _AGAIN[0] or errno == _AGAIN[1] else BROKEN


@kernel_part
def receive_into(socket: int, call: Words, places: Places) -> int:
    """Receive what has come, and nothing is waited for, into places of memory; there is room for some.

    Args:
        socket: its file descriptor.
        call: shape (`CALL_WORDS`,), for this call's own use.
        places: shape (n, 2), contiguous: address and size in bytes of at most `MOST_PLACES`, filled in order.

    Returns:
        How many bytes; 0 if nothing has come, `ENDED` or `BROKEN`.
    """
    _describe(call, places)
    count = _recvmsg(socket, call.ctypes.data, _DONT_WAIT)
    if count < 0:
        return _failure()
    return count if count else ENDED


@kernel_part
def send_from(socket: int, call: Words, places: Places) -> int:
    """Send as much of places of memory, as `receive_into` has them, as there is room for.

    Returns:
        How many bytes, or `BROKEN`.
    """
    _describe(call, places)
    count = _sendmsg(socket, call.ctypes.data, _DONT_WAIT | _NO_SIGNAL)
    return count if count >= 0 else _failure()


@kernel_part
def poll_two(call: Words, first: int, first_events: int, second: int, second_events: int, timeout_ms: int) -> bool:  # noqa: PLR0917 - kernels take no keywords
    """Wait until one of two sockets can do what is asked of it, or is broken; 0 asks nothing of it.

    Returns:
        False when the time is over, or a signal has come.
    """
    call[0] = ((first if first_events else -1) & _LOW) | first_events << 32
    call[1] = ((second if second_events else -1) & _LOW) | second_events << 32
    return _poll(call.ctypes.data, 2, timeout_ms) > 0
