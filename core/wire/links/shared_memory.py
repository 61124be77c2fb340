"""Memory that the processes of one user on one machine share: files in /dev/shm, mapped by all of them.

A peer learns of a buffer over the network, so it trusts nothing that it is told: boot id, path, owner, size and a
random token must all be right before it maps a file. Whatever is wrong, the caller exchanges over TCP instead.

The creator removes the name as soon as every peer has mapped the file; a process that is killed before leaves it
behind, hence the name tells whose it is, and the next buffer of this user removes it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import structlog
from numpy.typing import DTypeLike, NDArray

from taihu.core.base.errors import SharedMemoryError
from taihu.core.process.lives import LIFE, is_over, own_life
from taihu.core.process.memory.mapped_files import OPEN_FLAGS, SHARED_MEMORY, boot_id, is_own, make_mapped, map_file
from taihu.core.system.chance import is_same_secret, random_bytes
from taihu.protos import parameter_server_pb2 as pb

# 63 cache lines of 8 words; the line before them holds the token.
CONTROL_WORDS: Final = 504
_CACHE_LINE_BYTES = 64
_HEADER_BYTES = _CACHE_LINE_BYTES + 8 * CONTROL_WORDS
_TOKEN_BYTES = 16
# pid namespace, pid, the process's start time, token
_NAME = re.compile(rf"taihu-({LIFE})-[0-9a-f]{{32}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SharedDescriptor:
    """The description by which a peer maps a buffer.

    `boot_id` is the machine's, `token` 16 random bytes, `size_bytes` the size of the data area.
    """

    boot_id: str
    path: str
    token: bytes
    size_bytes: int


class SharedBuffer:
    """A mapped file: a page of token and control words, then a data area that begins page-aligned.

    Made by `create` or `open_shared`. As a context manager it closes itself.
    """

    def __init__(self, descriptor: SharedDescriptor, memory: NDArray[np.uint8], *, creator: bool) -> None:
        self.descriptor = descriptor
        self._memory: NDArray[np.uint8] | None = memory
        self._creator = creator

    @classmethod
    def create(cls, size_bytes: int) -> SharedBuffer:
        """Make and map a buffer of zeros, all of its memory reserved; `size_bytes` is that of the data area.

        Raises:
            SharedMemoryError: this machine has no shared memory, or not enough of it. Nothing is left behind.
        """
        if size_bytes < 0:
            raise ValueError(f"shared buffer of {size_bytes} bytes: expected 0 or more")
        try:
            remove_leftovers()
            token = random_bytes(_TOKEN_BYTES)
            path = SHARED_MEMORY / f"taihu-{own_life()}-{token.hex()}"
            descriptor = SharedDescriptor(boot_id(), str(path), token, size_bytes)
            memory = make_mapped(path, _HEADER_BYTES + size_bytes)
        except OSError as error:
            raise SharedMemoryError(f"no shared buffer of {size_bytes} bytes in {SHARED_MEMORY}: {error}") from error
        memory[:_TOKEN_BYTES] = np.frombuffer(token, dtype=np.uint8)
        return cls(descriptor, memory, creator=True)

    @property
    def size_bytes(self) -> int:
        """Size of the data area."""
        return self.descriptor.size_bytes

    @property
    def control(self) -> NDArray[np.int64]:
        """The control words, shape (`CONTROL_WORDS`,), int64, zeros at first; every eighth begins a cache line."""
        return self._mapped()[_CACHE_LINE_BYTES:_HEADER_BYTES].view(np.int64)

    def array(self, dtype: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        """`count` values from byte `offset` of the data area, shape (count,), sharing its memory.

        The mapping stays as long as any such array lives, even after `close`.

        Raises:
            ValueError: they do not lie inside the data area, or not aligned to their size.
        """
        kind = np.dtype(dtype)
        stop = offset + count * kind.itemsize
        if count < 0 or offset < 0 or stop > self.size_bytes or offset % kind.itemsize:
            raise ValueError(
                f"{count} {kind} from byte {offset}: expected an aligned range of {self.size_bytes} shared bytes"
            )
        return self._mapped()[_HEADER_BYTES + offset : _HEADER_BYTES + stop].view(kind)

    def unlink(self) -> None:
        """Remove the name, as soon as every peer has mapped the file; the memory stays. May be repeated."""
        Path(self.descriptor.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Give up this mapping, and as its creator remove the name. May be repeated."""
        # The views hold the mapping too; it goes with the last of them.
        self._memory = None
        if self._creator:
            self.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _mapped(self) -> NDArray[np.uint8]:
        if self._memory is None:
            raise ValueError(f"shared buffer {self.descriptor.path} is closed: use it before that")
        return self._memory


def allocate_values(elements: int, *, shared: bool) -> tuple[NDArray[np.float32], SharedBuffer | None]:
    """Zeros of shape (elements,), fp32; with `shared` in a buffer, which is None where this machine has none."""
    if shared:
        try:
            buffer = SharedBuffer.create(elements * np.dtype(np.float32).itemsize)
            return buffer.array(np.float32, elements), buffer
        except SharedMemoryError as error:
            structlog.get_logger().info("no shared memory", reason=str(error))
    return np.zeros(elements, dtype=np.float32), None


def buffer_to_message(descriptor: SharedDescriptor) -> pb.SharedBuffer:
    """Convert a descriptor."""
    return pb.SharedBuffer(**asdict(descriptor))


def buffer_from_message(message: pb.SharedBuffer) -> SharedDescriptor:
    """Convert a descriptor; `open_shared` checks it."""
    return SharedDescriptor(message.boot_id, message.path, message.token, message.size_bytes)


def open_shared(descriptor: SharedDescriptor) -> SharedBuffer:
    """Map the buffer that a peer created on this machine.

    Raises:
        SharedMemoryError: it is on another machine, does not exist here, or is not what it is said to be. Nothing
            is left open.
    """
    path = Path(descriptor.path)
    try:
        own = boot_id()
        if descriptor.boot_id != own:
            raise SharedMemoryError(f"shared buffer of boot {descriptor.boot_id!r}: this machine's boot is {own!r}")
        if path.parent != SHARED_MEMORY or descriptor.path != str(path) or not _NAME.fullmatch(path.name):
            raise SharedMemoryError(f"shared buffer {descriptor.path!r}: expected {SHARED_MEMORY}/{_NAME.pattern}")
        memory = _open(path, descriptor.size_bytes)
    except (OSError, ValueError) as error:
        raise SharedMemoryError(f"shared buffer {descriptor.path!r} cannot be opened: {error}") from error
    if not is_same_secret(memory[:_TOKEN_BYTES].tobytes(), descriptor.token):
        raise SharedMemoryError(f"shared buffer {descriptor.path!r} holds another token than its creator announced")
    return SharedBuffer(descriptor, memory, creator=False)


def remove_leftovers() -> None:
    """Remove the buffers of this user whose process no longer lives.

    Only processes of the own pid namespace can be looked up: files of other containers that share /dev/shm stay.

    Raises:
        OSError: there is no /dev/shm or no /proc.
    """
    for path in SHARED_MEMORY.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and is_own(path, stat.S_ISREG) and is_over(match[1]):
            path.unlink(missing_ok=True)


def _open(path: Path, size_bytes: int) -> NDArray[np.uint8]:
    file = os.open(path, OPEN_FLAGS)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise SharedMemoryError(f"shared buffer {path}: expected a regular file of user {os.geteuid()}")
        if size_bytes < 0 or status.st_size != _HEADER_BYTES + size_bytes:
            seen = status.st_size - _HEADER_BYTES
            raise SharedMemoryError(f"shared buffer {path} holds {seen} bytes: its creator announced {size_bytes}")
        return map_file(file, status.st_size)
    finally:
        os.close(file)
