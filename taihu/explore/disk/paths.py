"""Calls of `os` that take paths: those of a disk in memory, and real ones, where files can only be read."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from taihu.explore.disk import numbers
from taihu.explore.disk.descriptors import Descriptors, status_of
from taihu.explore.disk.disk import WORK, Disk, in_memory
from taihu.explore.disk.machine import MachineFiles
from taihu.explore.disk.storage import File, Folder, Node
from taihu.explore.scheduler import RUNNING

__all__ = [
    "AnyPath",
    "access",
    "chmod",
    "is_simulated",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open_",
    "readlink",
    "rename",
    "rmdir",
    "scandir",
    "stat_",
    "symlink",
    "unlink",
    "utime",
]

AnyPath = str | bytes | int | os.PathLike[Any]

_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _memory_path(path: AnyPath) -> str | None:
    """The path as a text where it is one of a disk in memory."""
    if isinstance(path, int):
        return None
    text = os.fsdecode(path)
    whole = text if text.startswith("/") else f"{WORK}/{text}"
    return whole if in_memory(whole) else None


def is_simulated(path: AnyPath) -> bool:
    """Whether a path is one of a disk in memory, or of a file that tells of the simulated machine."""
    return _memory_path(path) is not None or MachineFiles.find(path) is not None


def _text(path: AnyPath) -> str:
    if isinstance(path, int):
        _refuse(errno.ENOSYS, path)
    return os.fsdecode(path)


def _disk() -> Disk:
    return RUNNING().find(Disk)


def _descriptors() -> Descriptors:
    return RUNNING().find(Descriptors)


def _refuse(number: int, path: AnyPath, *_: object) -> NoReturn:
    raise OSError(number, os.strerror(number), path)


def open_(path: AnyPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """`os.open`."""
    ours = _memory_path(path)
    if ours is not None:
        return _descriptors().open(ours, flags, mode)
    made = MachineFiles.find(path)
    if made is not None:
        if flags & _CHANGES:
            _refuse(errno.EACCES, path)
        file = File(made.number, 0o444)
        file.data = bytearray(made.content)
        return _descriptors().add(file, _text(path), flags)
    if flags & _CHANGES and path != os.devnull:
        _refuse(errno.EROFS, path)
    return os.open(_text(path), flags, mode, dir_fd=dir_fd)


def stat_(path: AnyPath, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
    """`os.stat`."""
    if isinstance(path, int):
        return numbers.fstat(path)
    ours = _memory_path(path)
    if ours is not None:
        node = _disk().existing(ours).node
        assert node is not None  # noqa: S101
        return status_of(node)
    made = MachineFiles.find(path)
    if made is not None:
        return status_of(File(made.number, 0o444))
    return os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)


def lstat(path: AnyPath, *, dir_fd: int | None = None) -> os.stat_result:
    """`os.lstat`; there are no symbolic links in memory."""
    return stat_(path, dir_fd=dir_fd, follow_symlinks=False)


def access(path: AnyPath, mode: int, **_: object) -> bool:
    """`os.access`, by a user who may do all that a disk allows."""
    ours = _memory_path(path)
    if ours is None:
        return MachineFiles.find(path) is not None or (not mode & os.W_OK and os.access(path, mode))
    disk = _disk()
    try:
        node = disk.existing(ours).node
    except OSError:
        return False
    if mode & os.X_OK and isinstance(node, File) and not node.mode & 0o111:
        return False
    return not mode & os.W_OK or disk.may_write(ours)


def readlink(path: AnyPath, **_: object) -> str:
    """`os.readlink`."""
    ours = _memory_path(path)
    if ours is not None:
        _disk().existing(ours)
        _refuse(errno.EINVAL, path)
    return str(Path(_text(path)).readlink())


def listdir(path: AnyPath = ".") -> list[str]:
    """`os.listdir`."""
    ours = _memory_path(path)
    if ours is not None:
        return [name for name, _ in _disk().list(ours)]
    return [each.name for each in Path(_text(path)).iterdir()]


class Entry:
    """`os.DirEntry`."""

    def __init__(self, folder: str, name: str, node: Node) -> None:
        self.name = name
        self.path = posixpath.join(folder, name)
        self._node = node

    def inode(self) -> int:
        """The number of its inode."""
        return self._node.number

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return isinstance(self._node, Folder)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return isinstance(self._node, File)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return False

    def is_junction(self) -> bool:
        """Whether it is a junction."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As `os.stat`."""
        return stat_(self.path)

    def __fspath__(self) -> str:
        return self.path


class Entries:
    """The iterator that `os.scandir` returns."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As that of `os.scandir`."""
        self._entries = iter(())


def scandir(path: AnyPath = ".") -> Any:
    """`os.scandir`."""
    ours = _memory_path(path)
    if ours is None:
        return os.scandir(_text(path))
    return Entries([Entry(_text(path), name, node) for name, node in _disk().list(ours)])


def _changed(path: AnyPath) -> str:
    """The path of what is to be changed: in memory."""
    ours = _memory_path(path)
    if ours is None:
        _refuse(errno.EROFS, path)
    return ours


def mkdir(path: AnyPath, mode: int = 0o777, **_: object) -> None:
    """`os.mkdir`."""
    if _memory_path(path) is None and os.path.lexists(path):
        _refuse(errno.EEXIST, path)
    _disk().mkdir(_changed(path), mode)


def rmdir(path: AnyPath, **_: object) -> None:
    """`os.rmdir`."""
    _disk().rmdir(_changed(path))


def unlink(path: AnyPath, **_: object) -> None:
    """`os.unlink`."""
    if _memory_path(path) is None and not os.path.lexists(path):
        _refuse(errno.ENOENT, path)
    _disk().unlink(_changed(path))


def rename(source: AnyPath, target: AnyPath, **_: object) -> None:
    """`os.rename` and `os.replace`."""
    _disk().rename(_changed(source), _changed(target))


def link(source: AnyPath, target: AnyPath, **_: object) -> None:
    """`os.link`."""
    _disk().link(_changed(source), _changed(target))


def symlink(source: AnyPath, target: AnyPath, *_: object, **__: object) -> None:
    """`os.symlink`: such disks have none."""
    _refuse(errno.EPERM, target)


def chmod(path: AnyPath, mode: int, **_: object) -> None:
    """`os.chmod`."""
    ours = _changed(path)
    disk = _disk()
    disk.pass_point("chmod", ours)
    node = disk.existing(ours).node
    assert node is not None  # noqa: S101
    node.mode = stat.S_IFMT(node.mode) | mode


def utime(path: AnyPath, times: tuple[float, float] | None = None, **_: object) -> None:
    """`os.utime`."""
    disk = _disk()
    node = disk.existing(_changed(path)).node
    assert node is not None  # noqa: S101
    node.changed_s = disk.now_s if times is None else times[1]
