"""The order of a run that has no order of its own: which worker's frame entered which version, from each server.

A file has a line of JSON about the server and its frames, and then entries of `ENTRY_BYTES` each, in the order in
which they entered: of one frame, versions ascend. The last entry of a run that has ended says so. Little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from taihu.core.base.errors import ConfigError
from taihu.core.system.threads import Lock

_ENTRY: Final = struct.Struct("<IHHIII")
ENTRY_BYTES: Final = _ENTRY.size
_FORMAT: Final = 1
_SUFFIX: Final = ".order"
_BUFFER_BYTES: Final = 1 << 16
_NO_FRAME: Final = 0xFFFF_FFFF
_END: Final = (_NO_FRAME, 0, 0, 0, 0, 0)

_DROPPED: Final = 1


@dataclass(frozen=True)
class OrderHead:
    """The server and its frames.

    Attributes:
        job: digest of the settings that all members share.
        server: its index.
        generation: of the members.
        begun_after: the step that it went on from.
        workers: their number.
        elements: of the whole model.
        frames: for each, the ranges of a worker's arena that it covers, in order: start and stop.
    """

    job: str
    server: int
    generation: int
    begun_after: int
    workers: int
    elements: int
    frames: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Entered:
    """One worker's frame.

    Attributes:
        frame: its number among those of the server.
        rank: of the worker.
        step: of the worker.
        version: of the frame that this led to; or that it was at, where the worker's was dropped.
        read: version of the frame that the worker computed from.
        is_dropped: whether it came too late.
    """

    frame: int
    rank: int
    step: int
    version: int
    read: int
    is_dropped: bool = False


@dataclass(frozen=True)
class Order:
    """All that one server has recorded.

    Attributes:
        head: of the file.
        entries: in their order.
        is_whole: whether the run ended, and all of it is there.
    """

    head: OrderHead
    entries: tuple[Entered, ...]
    is_whole: bool


class OrderFile:
    """The order of one server's frames, `server-0-1.order` of a generation; any thread may add entries.

    At most `_BUFFER_BYTES` wait in memory. A disk that fails ends the record, of which `say` is told, not the run.

    Raises:
        ConfigError: the file cannot be made.
    """

    def __init__(self, folder: Path, head: OrderHead, say: Callable[[str], None] | None = None) -> None:
        self._path = folder / f"server-{head.server}-{head.generation}{_SUFFIX}"
        self._say = say or structlog.get_logger().warning
        self._lock = Lock()
        self._waiting = bytearray()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"run.order {folder}: {error.strerror}; name a folder that can be written") from None
        self._is_open = True
        self._waiting += json.dumps({"format": _FORMAT, **asdict(head)}).encode() + b"\n"
        self._flush()

    def add(self, entries: Iterable[Entered]) -> None:
        """Add entries of one frame; nobody else adds entries of it meanwhile."""
        with self._lock:
            for each in entries:
                flags = _DROPPED if each.is_dropped else 0
                self._waiting += _ENTRY.pack(each.frame, each.rank, flags, each.step, each.version, each.read)
            if len(self._waiting) >= _BUFFER_BYTES:
                self._flush()

    def end(self) -> None:
        """The run has ended: nothing more enters."""
        with self._lock:
            self._waiting += _ENTRY.pack(*_END)
            self._flush()

    def close(self) -> None:
        """Write the rest."""
        with self._lock:
            self._flush()
            if self._is_open:
                self._is_open = False
                self._file.close()

    def _flush(self) -> None:
        if not self._is_open:
            self._waiting.clear()
            return
        try:
            with memoryview(self._waiting) as whole:
                written = 0
                while written < len(whole):
                    written += self._file.write(whole[written:])
            self._waiting.clear()
        except OSError as error:
            self._is_open = False
            self._waiting.clear()
            self._file.close()
            self._say(f"the order is recorded no further: {self._path}: {error.strerror}")


def read_orders(folder: Path) -> tuple[Order, ...]:
    """The orders of all servers of a run, by their index.

    Raises:
        ConfigError: there are none, one cannot be read, or servers are missing.
    """
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"))
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    if not paths:
        raise ConfigError(
            f"{folder}: no orders there; servers record them where exchange.consistency is ssp:K, async or bsp:N-b"
        )
    orders = sorted((_read(path) for path in paths), key=lambda order: order.head.server)
    if [order.head.server for order in orders] != list(range(len(orders))):
        raise ConfigError(
            f"{folder}: expected one order of each server, found those of "
            f"{', '.join(str(order.head.server) for order in orders)}: the run has begun again, or files are missing"
        )
    return tuple(orders)


def _read(path: Path) -> Order:
    try:
        first, _, rest = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    head = _head(path, first)
    count = len(rest) // ENTRY_BYTES
    entries: list[Entered] = []
    for frame, rank, flags, step, version, read in _ENTRY.iter_unpack(rest[: count * ENTRY_BYTES]):
        if frame == _NO_FRAME:
            return Order(head, tuple(entries), is_whole=True)
        if frame >= len(head.frames) or rank >= head.workers:
            raise ConfigError(f"{path}: damaged: worker {rank}, frame {frame} of {len(head.frames)}")
        entries.append(Entered(frame, rank, step, version, read, bool(flags & _DROPPED)))
    return Order(head, tuple(entries), is_whole=False)


def _head(path: Path, line: bytes) -> OrderHead:
    wrong = ConfigError(f"{path}: not an order of this version")
    try:
        values: dict[str, Any] = json.loads(line)
    except ValueError:
        raise wrong from None
    if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
        raise wrong
    try:
        frames = _ranges(values.pop("frames"))
        head = OrderHead(**values, frames=frames)
    except (TypeError, ValueError, KeyError):
        raise wrong from None
    numbers = (head.server, head.generation, head.begun_after, head.workers, head.elements)
    ends = [stop for ranges in frames for _, stop in ranges]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or max(ends, default=0) > head.elements:
        raise wrong
    return head


def _ranges(frames: Sequence[Sequence[Sequence[int]]]) -> tuple[tuple[tuple[int, int], ...], ...]:
    found = tuple(tuple((int(start), int(stop)) for start, stop in ranges) for ranges in frames)
    if any(not 0 <= start < stop for ranges in found for start, stop in ranges):
        raise ValueError("ranges")
    return found
