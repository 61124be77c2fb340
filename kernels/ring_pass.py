"""One rank's part in a sum around a ring, from socket to socket: receiving, adding and sending on by one thread.

Between two neighbours is a connection of their own, on which frames go to the right, each a header and values behind
it. Who sends which values when is known on both sides (`frames`), so that a frame is the next one, or a mistake. A
frame that comes damaged ends the pass.

A header has four words of 64 bits, little-endian: a magic number, the pass's number, the frame's index and bytes, the
checksums of the values and of the header before it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.base.memory import memory_at
from taihu.kernels.crc32c import crc32c
from taihu.kernels.sockets import (
    CALL_WORDS,
    CAN_RECEIVE,
    CAN_SEND,
    MOST_PLACES,
    poll_two,
    receive_into,
    send_from,
)
from taihu.kernels.sums import accumulate, multiply


class Status(IntEnum):
    """The reason for which `run_pass` returns."""

    DONE = 1
    """The result is there, and all that goes to the right neighbour has been sent."""
    WAITING = 2
    """Nothing has moved for a while; call it again."""
    LOST_LEFT = -1
    LOST_RIGHT = -2
    """A neighbour has ended its connection, or it broke."""
    DAMAGED = -3
    """A frame came otherwise than it was sent."""
    WRONG_FRAME = -4
    """The left neighbour sent what does not belong here."""


_HEADER_WORDS: Final = 4
_HEADER_BYTES: Final = 8 * _HEADER_WORDS

STATE: Final = np.dtype(
    [
        # Set before the pass: the connections to both sides, its number, how many frames are sent, how many of those
        # before any has come, and how many are received: the first are added, from a number on sums are complete.
        ("left", np.int64),
        ("right", np.int64),
        ("number", np.int64),
        ("sends", np.int64),
        ("own", np.int64),
        ("receives", np.int64),
        ("added", np.int64),
        ("completed_from", np.int64),
        # All others are zeros then: what has been sent and received, and of the frame that is under way.
        ("sent", np.int64),
        ("sent_bytes", np.int64),
        ("received", np.int64),
        ("received_bytes", np.int64),
        # Memory of headers on both sides, of the one piece of a frame that is received to be added, and of calls.
        ("header_in", np.int64, (_HEADER_WORDS,)),
        ("header_out", np.int64, (_HEADER_WORDS,)),
        ("whole", np.int64, (1, 2)),
        ("call", np.int64, (CALL_WORDS,)),
        ("places", np.int64, (MOST_PLACES, 2)),
    ]
)
"""The state of a pass, an array of one record."""

_MAGIC: Final = 0x67726874
_HALF: Final = 32
_LOW: Final = 0xFFFFFFFF

Pieces = NDArray[np.int64]
Frames = NDArray[np.int64]


@kernel
def run_pass(  # noqa: PLR0917 - kernels take no keywords
    states: NDArray[Any],
    pieces: Pieces,
    frames: Frames,
    checksums: NDArray[np.int64],
    values: NDArray[Any],
    room: NDArray[np.uint8],
    fp16: bool,
    scale: float,
    timeout_ms: int,
) -> int:
    """Go on with a pass until it is done, cannot go on, or nothing moves for a while.

    Args:
        states: shape (1,), of `STATE`.
        pieces: shape (m, 2), int64: offset and size in bytes of ranges of `values`.
        frames: shape (n, 3), int64: first piece, the one after the last, and size in bytes of what is sent, in order,
            and behind it of the last frames received: what is received is what is sent, but for the first `own`.
        checksums: shape (n,), int64, of frames; -1 where unknown.
        values: shape (m,), contiguous: summed in place.
        room: shape (b,), uint8: frames that come to be added; b is the size of the largest one.
        fp16: whether values of uint16 are codes of fp16, else they are ones of bf16.
        scale: of complete sums; 1 takes no product.
        timeout_ms: after this long without anything that moves `WAITING` is returned.

    Returns:
        A `Status`.
    """
    state = states[0]
    while True:
        moved = _take_in(state, pieces, frames, checksums, values, room, fp16, scale)
        if moved < 0:
            return moved
        sent = _send_on(state, pieces, frames, checksums, values.ctypes.data)
        if sent < 0:
            return Status.LOST_RIGHT
        if state.received == state.receives and state.sent == state.sends:
            return Status.DONE
        if moved + sent == 0 and not _wait(state, timeout_ms):
            return Status.WAITING


@kernel_part
def _take_in(  # noqa: PLR0917 - kernels take no keywords
    state: Any,
    pieces: Pieces,
    frames: Frames,
    checksums: NDArray[np.int64],
    values: NDArray[Any],
    room: NDArray[np.uint8],
    fp16: bool,
    scale: float,
) -> int:
    """Receive what has come of the next frame, and take it if it is complete; returns how many bytes, or a status."""
    if state.received == state.receives:
        return 0
    row = state.own + state.received
    own, size = pieces[frames[row, 0] : frames[row, 1]], frames[row, 2]
    is_added = state.received < state.added
    before = state.received_bytes
    if is_added:
        state.whole[0, 1] = size
        places = _left_of(state.places, state.header_in, before, state.whole, room.ctypes.data)
    else:
        places = _left_of(state.places, state.header_in, before, own, values.ctypes.data)
    count = receive_into(state.left, state.call, places)
    if count <= 0:
        return 0 if count == 0 else Status.LOST_LEFT
    state.received_bytes = before + count
    has_header = before < _HEADER_BYTES <= state.received_bytes
    if has_header and _is_whole(state.header_in) and not _is_expected(state, size):
        return Status.WRONG_FRAME
    if state.received_bytes == _HEADER_BYTES + size:
        state.received_bytes = 0
        checksum = crc32c(room.ctypes.data, size) if is_added else _checksum(own, values.ctypes.data)
        if not _is_whole(state.header_in) or checksum != state.header_in[3] & _LOW:
            return Status.DAMAGED
        checksums[row] = _merge(state, own, values, room, fp16, scale) if is_added else checksum
        state.received += 1
    return count


@kernel_part
def _merge(  # noqa: PLR0917 - kernels take no keywords
    state: Any, own: Pieces, values: NDArray[Any], room: NDArray[np.uint8], fp16: bool, scale: float
) -> int:
    """Add a frame to the own values; returns the checksum of the sum."""
    come, checksum = room.ctypes.data, 0
    for piece in own:
        begin, count = piece[0] // values.itemsize, piece[1] // values.itemsize
        total = values[begin : begin + count]
        accumulate(total, memory_at(come, count, values.dtype), fp16)
        if scale != 1.0 and state.received >= state.completed_from:
            multiply(total, scale, fp16)
        checksum = crc32c(total.ctypes.data, piece[1], checksum)
        come += piece[1]
    return checksum


@kernel_part
def _checksum(pieces: Pieces, base: int) -> int:
    checksum = 0
    for piece in pieces:
        checksum = crc32c(base + piece[0], piece[1], checksum)
    return checksum


@kernel_part
def _left_of(places: Pieces, header: NDArray[np.int64], done: int, pieces: Pieces, base: int) -> Pieces:
    """The first places of memory of a frame of `pieces` behind `base` that lie behind its `done` bytes."""
    count = 0
    if done < _HEADER_BYTES:
        places[0, 0], places[0, 1] = header.ctypes.data + done, _HEADER_BYTES - done
        count = 1
    over = max(done - _HEADER_BYTES, 0)
    for piece in pieces:
        if over >= piece[1]:
            over -= piece[1]
        elif count < MOST_PLACES:
            places[count, 0], places[count, 1] = base + piece[0] + over, piece[1] - over
            count += 1
            over = 0
    return places[:count]


@kernel_part
def _is_whole(header: NDArray[np.int64]) -> bool:
    """Whether the checksum in the last four bytes of a header is that of those before."""
    return bool(crc32c(header.ctypes.data, _HEADER_BYTES - 4) == (header[3] >> _HALF) & _LOW)


@kernel_part
def _is_expected(state: Any, size: int) -> bool:
    header = state.header_in
    return bool(header[0] == _MAGIC and header[1] == state.number and header[2] == state.received | size << _HALF)


@kernel_part
def _can_send(state: Any) -> bool:
    return bool(state.sent < state.sends and state.sent < state.own + state.received)


@kernel_part
def _send_on(state: Any, pieces: Pieces, frames: Frames, checksums: NDArray[np.int64], base: int) -> int:
    """Send what there is room for of the next frame; returns how many bytes, or a negative number."""
    if not _can_send(state):
        return 0
    row, done = state.sent, state.sent_bytes
    own, size = pieces[frames[row, 0] : frames[row, 1]], frames[row, 2]
    if not done:
        if checksums[row] < 0:
            checksums[row] = _checksum(own, base)
        _set_header(state, size, checksums[row])
    count = send_from(state.right, state.call, _left_of(state.places, state.header_out, done, own, base))
    if count < 0:
        return count
    state.sent_bytes = done + count
    if state.sent_bytes == _HEADER_BYTES + size:
        state.sent += 1
        state.sent_bytes = 0
    return count


@kernel_part
def _set_header(state: Any, size: int, checksum: int) -> None:
    header = state.header_out
    header[0] = _MAGIC
    header[1] = state.number
    header[2] = state.sent | size << _HALF
    header[3] = checksum
    header[3] |= crc32c(header.ctypes.data, _HEADER_BYTES - 4) << _HALF


@kernel_part
def _wait(state: Any, timeout_ms: int) -> bool:
    """Wait for something that can be done; returns whether there is anything."""
    left = CAN_RECEIVE if state.received < state.receives else 0
    right = CAN_SEND if _can_send(state) else 0
    return poll_two(state.call, state.left, left, state.right, right, timeout_ms)
