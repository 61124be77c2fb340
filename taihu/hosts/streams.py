"""The streams of a host's end: orders that come, words that go, and what shown processes write."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import Any, Final

from taihu.core.system.clocks import monotonic
from taihu.core.system.polls import POLLIN, POLLOUT, is_writable, poll
from taihu.hosts.frames import SILENCE_S, Lines, frame, text_of

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_PIECE: Final = 1 << 16
# As much may wait for a launcher that does not read: what processes write waits behind it, in their pipes and logs.
_MOST_WAITING: Final = 1 << 20


class LauncherGoneError(Exception):
    """The launcher has ended, or its connection."""


class Streams:
    """The standard streams of this process, over which it and the launcher speak.

    Processes that are started with this process's output write into pipes from here on. Nothing here waits: who does
    not read the words of a host keeps nobody from ending its processes.
    """

    def __init__(self) -> None:
        self._words = _for_programs(os.dup(_STDOUT))
        self._stderr = _for_programs(os.dup(_STDERR))
        self._shown = {_STDOUT: _pipe_for(_STDOUT), _STDERR: _pipe_for(_STDERR)}
        os.set_blocking(self._words, False)
        self._lines = Lines()
        self._waiting = bytearray()
        self._orders: deque[dict[str, Any]] = deque()
        self._heard_s = monotonic()

    @property
    def is_full(self) -> bool:
        """Whether the launcher has not read for a while."""
        return len(self._waiting) > _MOST_WAITING

    def say(self, **words: Any) -> None:
        """Tell the launcher, as soon as it reads."""
        self._waiting += frame(words)
        self._flush()

    def order(self, timeout_s: float) -> dict[str, Any] | None:
        """The next order; None where there was none within `timeout_s`, or something else was to be done.

        Raises:
            LauncherGoneError: there will be no more, or none has come for `SILENCE_S`.
        """
        if not self._orders:
            self._listen(timeout_s)
        return self._orders.popleft() if self._orders else None

    def _listen(self, timeout_s: float) -> None:
        watched = poll()
        watched.register(_STDIN, POLLIN)
        for read in self._shown.values() if not self.is_full else ():
            watched.register(read, POLLIN)
        if self._waiting:
            watched.register(self._words, POLLOUT)
        ready = {number for number, _ in watched.poll(timeout_s * 1000)}
        self._flush()
        if _STDIN in ready:
            piece = os.read(_STDIN, _PIECE)
            if not piece:
                raise LauncherGoneError
            self._heard_s = monotonic()
            self._orders.extend(self._lines.add(piece))
        elif monotonic() - self._heard_s > SILENCE_S:
            raise LauncherGoneError

    def pass_on(self) -> None:
        """Tell the launcher all that shown processes have written by now."""
        for stream, read in self._shown.items():
            with suppress(BlockingIOError):
                while not self.is_full and (piece := os.read(read, _PIECE)):
                    self.say(output=stream, data=text_of(piece))

    def end(self, timeout_s: float) -> None:
        """Wait until the launcher has read everything, but no longer than that."""
        deadline = monotonic() + timeout_s
        while self._waiting and (left_s := deadline - monotonic()) > 0:
            is_writable(self._words, left_s)
            self._flush()

    def complain(self, words: str) -> None:
        """Write to the stderr that this process was started with."""
        with suppress(OSError):
            os.write(self._stderr, words.encode())

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._words, self._waiting)]
        except BlockingIOError:
            return
        except OSError as error:
            self._waiting.clear()
            raise LauncherGoneError from error


def _pipe_for(stream: int) -> int:
    """Our end of a pipe that takes the place of a standard stream."""
    read, write = os.pipe()
    os.dup2(write, stream)
    os.close(write)
    os.set_blocking(read, False)
    return _for_programs(read)


def _for_programs(number: int) -> int:
    """The same file; a fork of this process closes it, and does not take it for one that a library has opened."""
    os.set_inheritable(number, True)
    return number
