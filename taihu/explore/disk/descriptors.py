"""Open files of simulated processes: what `os` does with numbers of files, on a disk in memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from taihu.explore.disk.disk import Disk
from taihu.explore.disk.storage import File, Folder, Node
from taihu.explore.tasks import Process

__all__ = ["FIRST", "Descriptors", "status_of"]

FIRST: Final = 1 << 20
"""The first number: those below it are real."""

_BUSY_S: Final = 1e-3
# Of the writes, those that are done in two parts: so a process may be killed within one, as on a machine.
_IN_PARTS: Final = 0.1
_BLOCK: Final = 4096


class _Open:
    """An open file or folder."""

    __slots__ = ("flags", "node", "path", "position", "process")

    def __init__(self, node: Node, path: str, flags: int, process: Process) -> None:
        self.node = node
        self.path = path
        self.flags = flags
        self.position = 0
        self.process = process

    @property
    def reads(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_WRONLY

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class Descriptors:
    """The open files of all processes of a run; `scheduler.provide` it beside the disk.

    Args:
        disk: that they are on.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, _Open] = {}
        # Files that somebody is in the middle of writing: nobody else writes to them then.
        self._written_by: dict[File, Process] = {}

    def left_open(self, process: Process) -> list[str]:
        """Paths of the files that a process has open."""
        return [each.path for each in self._open.values() if each.process is process]

    # -- opening

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """As `os.open`."""
        writes = flags & (os.O_ACCMODE | os.O_TRUNC) != os.O_RDONLY
        self._disk.pass_point("open to write" if writes else "open", path)
        if flags & os.O_CREAT and path.endswith("/"):
            self._disk.locate(path.rstrip("/"))
            _refuse(errno.EISDIR, path)
        found = self._disk.locate(path)
        node = found.node
        if node is None:
            if not flags & os.O_CREAT:
                _refuse(errno.ENOENT, path)
            self._disk.pass_point("create", path)
            node = self._disk.locate(path).node  # somebody else may have made it at this point
            if node is None:
                node = self._disk.create(found, path, mode & ~0o022 & 0o777)
                return self.add(node, path, flags)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            _refuse(errno.EEXIST, path)
        if isinstance(node, Folder):
            if writes or flags & os.O_CREAT:
                _refuse(errno.EISDIR, path)
        elif flags & os.O_DIRECTORY:
            _refuse(errno.ENOTDIR, path)
        elif flags & os.O_TRUNC and node.size:
            node.resize(self._disk.host_name, 0)
            node.changed_s = self._disk.now_s
        return self.add(node, path, flags)

    def add(self, node: Node, path: str, flags: int) -> int:
        """The lowest number that is free, for an open file."""
        number = FIRST
        while number in self._open:
            number += 1
        self._open[number] = _Open(node, path, flags, self._disk.scheduler.current.process)
        return number

    def close(self, number: int) -> None:
        """As `os.close`."""
        self._of(number)
        del self._open[number]

    # -- reading and writing

    def read(self, number: int, size: int) -> bytes:
        """As `os.read`."""
        opened, file = self._file(number, reads=True)
        self._disk.pass_point("read", opened.path)
        data = bytes(file.data[opened.position : opened.position + size])
        opened.position += len(data)
        return data

    def pread(self, number: int, size: int, offset: int) -> bytes:
        """As `os.pread`."""
        opened, file = self._file(number, reads=True)
        self._disk.pass_point("read", opened.path)
        return bytes(file.data[offset : offset + size])

    def write(self, number: int, data: bytes) -> int:
        """As `os.write`; a full disk takes the beginning."""
        opened, _ = self._file(number, writes=True)
        written, opened.position = self._write(opened, opened.position, data)
        return written

    def pwrite(self, number: int, data: bytes, offset: int) -> int:
        """As `os.pwrite`, on Linux: where files are open to append, it does."""
        opened, _ = self._file(number, writes=True)
        return self._write(opened, offset, data)[0]

    def _write(self, opened: _Open, start: int, data: bytes) -> tuple[int, int]:
        """Write `data` and return how much was written, and the position behind it."""
        disk, file = self._disk, opened.node
        assert isinstance(file, File)  # noqa: S101 - folders are never open to write
        disk.pass_point("write", opened.path)
        if not data:
            return 0, start
        with self._writing(file):
            start = file.size if opened.flags & os.O_APPEND else start
            grows = max(0, start + len(data) - max(file.size, start))
            room = disk.take_room(grows, opened.path)
            data = data[: len(data) - grows + room]
            if not data:
                _refuse(errno.ENOSPC)
            first = 0
            if len(data) > 1 and disk.chance.random() < _IN_PARTS:
                first = disk.chance.randrange(1, len(data))
                file.write(disk.host_name, start, data[:first])
                disk.scheduler.point("in a write")
            file.write(disk.host_name, start + first, data[first:])
            file.changed_s = disk.now_s
        return len(data), start + len(data)

    @contextmanager
    def _writing(self, file: File) -> Iterator[None]:
        """Be the only one that writes to a file; whoever was killed in the middle is so no more."""
        scheduler = self._disk.scheduler
        while (other := self._written_by.get(file)) is not None and not other.is_dead:
            scheduler.block("another one's write", scheduler.now + _BUSY_S)
        self._written_by[file] = scheduler.current.process
        try:
            yield
        finally:
            self._written_by.pop(file, None)

    def seek(self, number: int, position: int, whence: int) -> int:
        """As `os.lseek`."""
        opened = self._of(number)
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: opened.position, os.SEEK_END: opened.node.size}[whence]
        if begin + position < 0:
            _refuse(errno.EINVAL)
        opened.position = begin + position
        return opened.position

    def truncate(self, number: int, size: int) -> None:
        """As `os.ftruncate`."""
        opened, file = self._of(number), self._of(number).node
        if size < 0 or not opened.writes or not isinstance(file, File):
            _refuse(errno.EINVAL)
        self._disk.pass_point("write", opened.path)
        if size != file.size:
            file.resize(self._disk.host_name, size)
        file.changed_s = self._disk.now_s

    def allocate(self, number: int, offset: int, size: int) -> None:
        """As `os.posix_fallocate`."""
        opened = self._of(number)
        if offset < 0 or size <= 0:
            _refuse(errno.EINVAL)
        _, file = self._file(number, writes=True)
        self._disk.pass_point("allocate", opened.path)
        grows = max(0, offset + size - file.size)
        if self._disk.take_room(grows, opened.path) < grows:
            _refuse(errno.ENOSPC)
        if grows:
            file.resize(self._disk.host_name, offset + size)

    def synchronize(self, number: int) -> None:
        """As `os.fsync`."""
        opened = self._of(number)
        self._disk.pass_point("fsync", opened.path)
        opened.node.synchronize()

    def status(self, number: int) -> os.stat_result:
        """As `os.fstat`."""
        return status_of(self._of(number).node)

    def node(self, number: int) -> Node:
        """The open file or folder."""
        return self._of(number).node

    def path(self, number: int) -> str:
        """The path that it was opened by."""
        return self._of(number).path

    def _of(self, number: int) -> _Open:
        found = self._open.get(number)
        if found is None or found.process is not self._disk.scheduler.current.process:
            _refuse(errno.EBADF)
        return found

    def _file(self, number: int, *, reads: bool = False, writes: bool = False) -> tuple[_Open, File]:
        opened = self._of(number)
        if (reads and not opened.reads) or (writes and not opened.writes):
            _refuse(errno.EBADF)
        if not isinstance(opened.node, File):
            _refuse(errno.EISDIR)
        return opened, opened.node


def status_of(node: Node) -> os.stat_result:
    """The numbers that `os.stat` tells of a file or folder."""
    seconds, links = int(node.changed_s), node.links
    usual = (node.mode, node.number, 1, links, os.geteuid(), os.getegid(), node.size, seconds, seconds, seconds)
    nanoseconds = int(node.changed_s * 1e9)
    more = {f"st_{each}time_ns": nanoseconds for each in "amc"} | {f"st_{each}time": node.changed_s for each in "amc"}
    more |= {"st_blksize": _BLOCK, "st_blocks": -(-node.size // 512) if stat.S_ISREG(node.mode) else 8}
    return os.stat_result(usual, more)


def _refuse(number: int, *paths: str) -> NoReturn:
    raise OSError(number, os.strerror(number), *paths)
