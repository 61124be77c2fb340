"""One rank's part in a sum around a ring, from socket to socket: receiving, adding and sending on by one thread.

Between two neighbours is a connection of their own. Frames go to the right, each a header and values behind it;
words go back to the left, `AGAIN` and `TAKEN`. Who sends which values when is known on both sides (`frames`), so that
a frame is either the next one or a mistake. A frame that comes damaged, and all that follow, are dropped until they
are repeated from it on, from where the values lie: a partial sum is not replaced by its result before the right
neighbour has taken it, because the result comes through that one. A word is said twice in one breath, and one of the
two is enough: nobody would be there to repeat the last one of a pass.

A header has four words of 64 bits, little-endian: a magic number and flags, the pass's number, the frame's index
and bytes, the checksums of the values and of the header before it. A word has two: its kind and the index of a frame,
the low half of the pass's number and a checksum.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.crc32c import crc32c
from taihu.kernels.jit import kernel, kernel_part
from taihu.kernels.memory import memory_at
from taihu.kernels.sockets import CALL_WORDS, CAN_RECEIVE, CAN_SEND, poll_two, receive_two, send_two
from taihu.kernels.sums import accumulate, multiply

__all__ = ["STATE", "Status", "run_pass"]


class Status(IntEnum):
    """The reason for which `run_pass` returns."""

    DONE = 1
    """The result is there, and the right neighbour has all of it."""
    WAITING = 2
    """Nothing has moved for a while; call it again."""
    DAMAGED = 3
    """A frame came damaged, and is repeated; call it again."""
    LOST_LEFT = -1
    LOST_RIGHT = -2
    """A neighbour has ended its connection, or it broke."""
    DAMAGED_TWICE = -3
    """The repeated frame came damaged, too."""
    WRONG_FRAME = -4
    WRONG_WORD = -5
    """A neighbour sent what does not belong here."""


_HEADER_WORDS: Final = 4
_HEADER_BYTES: Final = 8 * _HEADER_WORDS
_WORD_BYTES: Final = 16
_SAID_BYTES: Final = 2 * _WORD_BYTES

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
        ("sent_from", np.int64),
        ("received", np.int64),
        ("received_bytes", np.int64),
        # The frame that is to be repeated, and one more than that which was asked for again; 0 for none.
        ("again", np.int64),
        ("repeats", np.int64),
        ("asked", np.int64),
        # While frames are dropped: the index of the one that comes, and what is left of it.
        ("dropping", np.int64),
        ("position", np.int64),
        ("skipped_bytes", np.int64),
        ("damaged", np.int64),
        # Of words: what is left to be said, what has been heard of one, whether the right neighbour has everything.
        ("unsaid_bytes", np.int64),
        ("heard_bytes", np.int64),
        ("taken", np.int64),
        # Memory of headers and words on both sides, and of calls.
        ("header_in", np.int64, (_HEADER_WORDS,)),
        ("header_out", np.int64, (_HEADER_WORDS,)),
        ("word_in", np.int64, (_HEADER_WORDS,)),
        ("word_out", np.int64, (_HEADER_WORDS,)),
        ("call", np.int64, (CALL_WORDS,)),
    ]
)
"""The state of a pass, an array of one record."""

_MAGIC: Final = 0x67726874
_REPEATED: Final = 1
_AGAIN: Final = 1
_TAKEN: Final = 2
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
    rooms: NDArray[np.uint8],
    fp16: bool,
    scale: float,
    timeout_ms: int,
) -> int:
    """Go on with a pass until it is done, something has to be said of it, or nothing moves for a while.

    Args:
        states: shape (1,), of `STATE`.
        pieces: shape (m, 2), int64: offset and size in bytes of ranges of `values`.
        frames: shape (n, 3), int64: first piece, the one after the last, and size in bytes of what is sent, in order,
            and behind it of the last frames received: what is received is what is sent, but for the first `own`.
        checksums: shape (n,), int64, of frames; -1 where unknown.
        values: shape (m,), contiguous: summed in place.
        rooms: shape (2, b), uint8: frames that come and go; b is the size of the largest frame.
        fp16: whether values of uint16 are codes of fp16, else they are ones of bf16.
        scale: of complete sums; 1 takes no product.
        timeout_ms: after this long without anything that moves `WAITING` is returned.

    Returns:
        A `Status`.
    """
    state = states[0]
    while True:
        moved = _take_in(state, pieces, frames, checksums, values, rooms[0], fp16, scale)
        if moved < 0:
            return moved
        damaged, state.damaged = state.damaged, 0
        if damaged:
            return Status.DAMAGED
        sent = _send_on(state, pieces, frames, checksums, values, rooms[1])
        heard = 0 if moved + sent > 0 and state.sent < state.sends else _listen(state)
        if sent < 0 or heard < 0:
            return Status.LOST_RIGHT if sent < 0 else heard
        if state.unsaid_bytes and _say_on(state) < 0:
            return Status.LOST_LEFT
        if state.received == state.receives and state.taken and not state.unsaid_bytes:
            return Status.DONE
        if moved + sent + heard == 0 and not _wait(state, timeout_ms):
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
    if state.dropping:
        return _drop(state, frames, room)
    row = state.own + state.received
    own, size = pieces[frames[row, 0] : frames[row, 1]], frames[row, 2]
    passes_room = state.received < state.added or len(own) > 1
    place = room.ctypes.data if passes_room else values.ctypes.data + own[0, 0]
    before = state.received_bytes
    header = state.header_in.ctypes.data
    of_header, of_values = min(before, _HEADER_BYTES), max(before - _HEADER_BYTES, 0)
    count = receive_two(
        state.left, state.call, header + of_header, _HEADER_BYTES - of_header, place + of_values, size - of_values
    )
    if count <= 0:
        return 0 if count == 0 else Status.LOST_LEFT
    state.received_bytes = before + count
    has_header = before < _HEADER_BYTES <= state.received_bytes
    if has_header and _is_whole(state.header_in, _HEADER_BYTES) and not _is_expected(state, size):
        return Status.WRONG_FRAME
    if state.received_bytes == _HEADER_BYTES + size:
        state.received_bytes = 0
        checksum = crc32c(place, size)
        if not _is_whole(state.header_in, _HEADER_BYTES) or checksum != state.header_in[3] & _LOW:
            return _refuse(state, count)
        checksums[row] = checksum
        if state.received < state.added:
            checksums[row] = _merge(state, own, values, room, fp16, scale)
        elif passes_room:
            _copy(own, values, room, to_room=False)
        state.received += 1
        if state.received == state.receives:
            _say(state, _TAKEN, state.received)
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
def _copy(own: Pieces, values: NDArray[Any], room: NDArray[np.uint8], to_room: bool) -> None:
    """Copy the pieces of a frame to the room in which it is whole, or from there."""
    at = 0
    for piece in own:
        inside, whole = memory_at(values.ctypes.data + piece[0], piece[1], np.uint8), room[at : at + piece[1]]
        if to_room:
            whole[:] = inside
        else:
            inside[:] = whole
        at += piece[1]


@kernel_part
def _is_whole(words: NDArray[np.int64], size: int) -> bool:
    """Whether the checksum in the last four of `size` bytes is that of those before."""
    return bool(crc32c(words.ctypes.data, size - 4) == (words[size // 8 - 1] >> _HALF) & _LOW)


@kernel_part
def _is_expected(state: Any, size: int) -> bool:
    header = state.header_in
    is_next = header[1] == state.number and header[2] == state.received | size << _HALF
    return bool(is_next and header[0] & ~(_REPEATED << _HALF) == _MAGIC)


@kernel_part
def _refuse(state: Any, count: int) -> int:
    """Ask for the next frame again; returns `count`, or a status."""
    if state.asked == state.received + 1:
        return Status.DAMAGED_TWICE
    state.asked = state.received + 1
    state.damaged = 1
    state.dropping = 1
    state.position = state.received
    _say(state, _AGAIN, state.received)
    return count


@kernel_part
def _drop(state: Any, frames: Frames, room: NDArray[np.uint8]) -> int:
    """Receive what has come while a repetition is awaited; returns how many bytes, or a status."""
    before = state.received_bytes
    header = state.header_in.ctypes.data
    if before == _HEADER_BYTES:
        count = receive_two(state.left, state.call, header, 0, room.ctypes.data, state.skipped_bytes)
    else:
        count = receive_two(state.left, state.call, header + before, _HEADER_BYTES - before, header, 0)
    if count <= 0:
        return 0 if count == 0 else Status.LOST_LEFT
    if before == _HEADER_BYTES:
        state.skipped_bytes -= count
        if not state.skipped_bytes:
            state.received_bytes = 0
        return count
    state.received_bytes = before + count
    return count if state.received_bytes < _HEADER_BYTES else _look_at_dropped(state, frames, count)


@kernel_part
def _look_at_dropped(state: Any, frames: Frames, count: int) -> int:
    """A header has come while frames are dropped: that of the repetition, or of one more to drop."""
    if not _is_whole(state.header_in, _HEADER_BYTES):
        return Status.DAMAGED_TWICE
    if state.header_in[0] == _MAGIC | _REPEATED << _HALF:
        state.dropping = 0
        is_asked_for = _is_expected(state, frames[state.own + state.received, 2])
        return count if is_asked_for else Status.WRONG_FRAME
    state.position += 1
    state.skipped_bytes = state.header_in[2] >> _HALF & _LOW
    is_next = state.position < state.receives and state.header_in[2] & _LOW == state.position
    fits = is_next and state.skipped_bytes == frames[state.own + state.position, 2]
    return count if fits else Status.WRONG_FRAME


@kernel_part
def _can_send(state: Any) -> bool:
    return bool(state.sent < state.sends and state.sent < state.own + state.received)


@kernel_part
def _send_on(  # noqa: PLR0917 - kernels take no keywords
    state: Any,
    pieces: Pieces,
    frames: Frames,
    checksums: NDArray[np.int64],
    values: NDArray[Any],
    room: NDArray[np.uint8],
) -> int:
    """Send what there is room for of the next frame; returns how many bytes, or a negative number."""
    if state.again and not state.sent_bytes:
        state.sent, state.again, state.repeats = state.again - 1, 0, _REPEATED
    if not _can_send(state):
        return 0
    row = state.sent
    own, size = pieces[frames[row, 0] : frames[row, 1]], frames[row, 2]
    if not state.sent_bytes:
        state.sent_from = values.ctypes.data + own[0, 0]
        if len(own) > 1:
            _copy(own, values, room, to_room=True)
            state.sent_from = room.ctypes.data
        if checksums[row] < 0:
            checksums[row] = crc32c(state.sent_from, size)
        _set_header(state, size, checksums[row])
    place, done = state.sent_from, state.sent_bytes
    of_header, of_values = min(done, _HEADER_BYTES), max(done - _HEADER_BYTES, 0)
    header = state.header_out.ctypes.data + of_header
    count = send_two(state.right, state.call, header, _HEADER_BYTES - of_header, place + of_values, size - of_values)
    if count < 0:
        return count
    state.sent_bytes = done + count
    if state.sent_bytes == _HEADER_BYTES + size:
        state.sent += 1
        state.sent_bytes = state.repeats = 0
    return count


@kernel_part
def _set_header(state: Any, size: int, checksum: int) -> None:
    header = state.header_out
    header[0] = _MAGIC | state.repeats << _HALF
    header[1] = state.number
    header[2] = state.sent | size << _HALF
    header[3] = checksum
    header[3] |= crc32c(header.ctypes.data, _HEADER_BYTES - 4) << _HALF


@kernel_part
def _say(state: Any, kind: int, index: int) -> None:
    """Say a word to the left neighbour, twice."""
    word = state.word_out
    word[0] = kind | index << _HALF
    word[1] = state.number & _LOW
    word[1] |= crc32c(word.ctypes.data, _WORD_BYTES - 4) << _HALF
    word[2], word[3] = word[0], word[1]
    state.unsaid_bytes = _SAID_BYTES


@kernel_part
def _say_on(state: Any) -> int:
    word = state.word_out.ctypes.data
    count = send_two(state.left, state.call, word + _SAID_BYTES - state.unsaid_bytes, state.unsaid_bytes, word, 0)
    if count > 0:
        state.unsaid_bytes -= count
    return count


@kernel_part
def _listen(state: Any) -> int:
    """Hear what has come of a word of the right neighbour; returns how many bytes, or a status."""
    if state.taken:
        return 0
    word = state.word_in.ctypes.data
    count = receive_two(state.right, state.call, word + state.heard_bytes, _SAID_BYTES - state.heard_bytes, word, 0)
    if count <= 0:
        return 0 if count == 0 else Status.LOST_RIGHT
    state.heard_bytes += count
    if state.heard_bytes == _SAID_BYTES:
        state.heard_bytes = 0
        return count if _hear(state) else Status.WRONG_WORD
    return count


@kernel_part
def _hear(state: Any) -> bool:
    """Act on a word; returns whether it makes sense."""
    first, second = state.word_in[:2], state.word_in[2:]
    word = first if _is_whole(first, _WORD_BYTES) else second
    kind, index = word[0] & _LOW, (word[0] >> _HALF) & _LOW
    if not _is_whole(word, _WORD_BYTES) or word[1] & _LOW != state.number & _LOW:
        return False
    if kind == _TAKEN and index == state.sends and state.sent == state.sends:
        state.taken = 1
        return True
    state.again = index + 1
    return bool(kind == _AGAIN and index < state.sent)


@kernel_part
def _wait(state: Any, timeout_ms: int) -> bool:
    """Wait for something that can be done; returns whether there is anything."""
    left = CAN_RECEIVE if state.received < state.receives else 0
    right = 0 if state.taken else CAN_RECEIVE
    if state.unsaid_bytes:
        left |= CAN_SEND
    if _can_send(state):
        right |= CAN_SEND
    return poll_two(state.call, state.left, left, state.right, right, timeout_ms)
