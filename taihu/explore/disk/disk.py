"""The disks of a run, in memory: folders that every host sees, and those that each has for itself."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, NoReturn

from taihu.explore.disk.faults import DiskFaults
from taihu.explore.disk.storage import File, Folder, Node, lose_unsynchronized
from taihu.explore.scheduler import Scheduler
from taihu.explore.tasks import Process

__all__ = ["MEMORY", "OWN", "RECORDS", "SHARED", "SLOW", "TEMPORARY", "WORK", "Disk", "Location", "in_memory"]

_TOP: Final = "/explored"
SLOW: Final = "a slow disk"
"""The beginning of the words for the wait of a task whose disk is slow."""

SHARED: Final = f"{_TOP}/shared"
"""The folder that all hosts see, as one of a network file system."""

RECORDS: Final = f"{_TOP}/records"
"""Another one, whose power does not fail: of what judges read."""

OWN: Final = f"{_TOP}/own"
"""The folder that each host has for itself."""

WORK: Final = f"{OWN}/work"
"""The current folder of all processes."""

TEMPORARY: Final = f"{OWN}/tmp"  # noqa: S108 - of the simulated host
"""The folder for temporary files."""

MEMORY: Final = "/dev/shm"  # noqa: S108 - of the simulated host
"""The folder whose files processes of a host map."""

_KEPT_OF_WALL: Final = 1_700_000_000.0
_FIRST_PID: Final = 1000
# Of the time of making it durable.
_OF_WRITES: Final = 0.2


def in_memory(path: str) -> bool:
    """Whether an absolute path is one of a disk in memory; others are real, and can only be read."""
    return path.startswith((_TOP, MEMORY)) and (path in (_TOP, MEMORY) or path.startswith((f"{_TOP}/", f"{MEMORY}/")))


class Location(NamedTuple):
    """The place of a file or folder: in which folder by which name; the top of a disk has no name."""

    folder: Folder
    name: str
    node: Node | None


class Host:
    """The storage that a host has for itself."""

    def __init__(self, name: str, number: int, own: Folder, memory: Folder) -> None:
        self.name = name
        self.number = number
        self.own = own
        self.memory = memory


class Disk:
    """The disks of a run; `scheduler.provide` it. Stand-ins do with it what the daemons do with files.

    Every operation that changes anything, or opens, reads or lists, passes a point of its name: `open`,
    `open to write`, `create`, `read`, `write`, `in a write`, `fsync`, `rename`, `unlink`, `mkdir`, `rmdir`, `list`,
    `allocate`, `link`, `chmod`.

    Args:
        scheduler: of the run.
        host_of: the name of the host that a process runs on: by default all run on one.
        busy_s: the longest time that the shared folder needs for bytes to be durable.

    Attributes:
        faults: what is wrong with disks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        host_of: Callable[[Process], str] = lambda process: "host",
        *,
        busy_s: float = 0.0,
    ) -> None:
        self.scheduler = scheduler
        self._busy_s = {"write": _OF_WRITES * busy_s, "fsync": busy_s}
        self.faults = DiskFaults(lambda: scheduler.now)
        self.chance = scheduler.random("disk")
        self._host_of = host_of
        self._number = 0
        self._hosts: dict[str, Host] = {}
        self._pids: dict[Process, int] = {}
        self._shared = self._new_folder(0o777)
        self._records = self._new_folder(0o777)
        self._top = self._new_folder(0o755)

    # -- who

    def host(self, process: Process | None = None) -> Host:
        """The host that a process runs on; by default the running task's."""
        name = self._host_of(process or self.scheduler.current.process)
        found = self._hosts.get(name)
        if found is None:
            own = self._new_folder(0o755)
            found = self._hosts[name] = Host(name, len(self._hosts), own, self._new_folder(0o777))
            for inside in ("tmp", "work", "run", "home"):
                own.name(name, {inside: self._new_folder(0o700, own)})
            own.synchronize()
        return found

    def pid(self, process: Process | None = None) -> int:
        """The number of a process, from 1000 in the order in which they were asked for it."""
        return self._pids.setdefault(process or self.scheduler.current.process, _FIRST_PID + len(self._pids))

    def process(self, pid: int) -> Process | None:
        """The living process of this number on the running task's host."""
        host = self.host()
        for process, number in self._pids.items():
            if number == pid and self._host_of(process) == host.name:
                lives = not process.is_dead and (
                    process is self.scheduler.current.process or self.scheduler.living(process)
                )
                return process if lives else None
        return None

    # -- faults

    def power_loss(self, process: Process) -> None:
        """The power of the host that `process` runs on fails; its processes have to be killed before.

        What was synchronized is there afterwards; of all else what chance leaves.
        """
        host = self.host(process)
        lose_unsynchronized(self._shared, host.name, self.chance)
        lose_unsynchronized(host.own, host.name, self.chance)
        host.memory = self._new_folder(0o777)

    def pass_point(self, operation: str, path: str) -> None:
        """Let others go on; then the operation happens, if it may.

        Raises:
            OSError: a fault of the disk.
        """
        self.scheduler.point(operation)
        busy_s = self._busy_s.get(operation)
        if busy_s and path.startswith(SHARED):
            self.scheduler.block(f"a disk ({operation})", self.scheduler.now + busy_s * self.chance.random())
        if self.faults.any:
            process = self.scheduler.current.process
            told = (process.member, self.host().name, path)
            delay_s = self.faults.delay_s(*told)
            if delay_s:
                self.scheduler.block(f"{SLOW} ({operation})", self.scheduler.now + delay_s)
            self.faults.check(operation, *told)

    def take_room(self, wanted: int, path: str) -> int:
        """Take so many bytes of what is free, or those that are left; how many it took."""
        if not self.faults.any:
            return wanted
        return self.faults.take_room(wanted, self.scheduler.current.process.member, self.host().name, path)

    def may_write(self, path: str) -> bool:
        """Whether files below a folder may be changed."""
        member = self.scheduler.current.process.member
        return not self.faults.found("read-only", member, self.host().name, path)

    # -- names

    def absolute(self, path: str) -> str:
        """A path without `.` and `..`, from the top."""
        return posixpath.normpath(posixpath.join(WORK, path))

    def locate(self, path: str) -> Location:
        """The place of a path that `in_memory` holds for.

        Raises:
            OSError: a folder above it is none.
        """
        folder, names = self._disk_of(self.absolute(path))
        if not names:
            return Location(folder, "", folder)
        for name in names[:-1]:
            inside = folder.entries.get(name)
            if inside is None:
                _refuse(errno.ENOENT, path)
            if not isinstance(inside, Folder):
                _refuse(errno.ENOTDIR, path)
            folder = inside
        if len(os.fsencode(names[-1])) > 255:
            _refuse(errno.ENAMETOOLONG, path)
        node = folder.entries.get(names[-1])
        if path.endswith("/") and isinstance(node, File):
            _refuse(errno.ENOTDIR, path)
        return Location(folder, names[-1], node)

    def _disk_of(self, path: str) -> tuple[Folder, list[str]]:
        """The top of a disk, and the names of the way from there."""
        host = self.host()
        for begin, folder in (
            (SHARED, self._shared),
            (RECORDS, self._records),
            (OWN, host.own),
            (MEMORY, host.memory),
        ):
            if path == begin:
                return folder, []
            if path.startswith(f"{begin}/"):
                return folder, path[len(begin) + 1 :].split("/")
        return self._top, path[len(_TOP) + 1 :].split("/") if path != _TOP else []

    def existing(self, path: str) -> Location:
        """The place of what there is; OSError where there is nothing."""
        found = self.locate(path)
        if found.node is None:
            _refuse(errno.ENOENT, path)
        return found

    # -- what is done with names

    def create(self, found: Location, path: str, mode: int) -> File:
        """Make a file."""
        if found.folder is self._top:
            _refuse(errno.EACCES, path)
        file = File(self._next_number(), mode)
        file.changed_s = self.now_s
        self._name(found.folder, {found.name: file})
        file.links = 1
        return file

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """As `os.mkdir`."""
        self.pass_point("mkdir", path)
        found = self.locate(path)
        if found.node is not None:
            _refuse(errno.EEXIST, path)
        if found.folder is self._top:
            _refuse(errno.EACCES, path)
        self._name(found.folder, {found.name: self._new_folder(mode & ~0o022, found.folder)})

    def rmdir(self, path: str) -> None:
        """As `os.rmdir`."""
        self.pass_point("rmdir", path)
        found = self.existing(path)
        if not isinstance(found.node, Folder):
            _refuse(errno.ENOTDIR, path)
        if not found.name:
            _refuse(errno.EBUSY, path)
        if found.node.entries:
            _refuse(errno.ENOTEMPTY, path)
        self._name(found.folder, {found.name: None})

    def unlink(self, path: str) -> None:
        """As `os.unlink`."""
        self.pass_point("unlink", path)
        found = self.existing(path)
        if not isinstance(found.node, File):
            _refuse(errno.EISDIR, path)
        self._name(found.folder, {found.name: None})
        found.node.links -= 1

    def link(self, source: str, path: str) -> None:
        """As `os.link`."""
        self.pass_point("link", path)
        of, found = self.existing(source), self.locate(path)
        if found.node is not None:
            _refuse(errno.EEXIST, source, path)
        self._check_same_disk(source, path)
        if not isinstance(of.node, File):
            _refuse(errno.EPERM, source, path)
        self._name(found.folder, {found.name: of.node})
        of.node.links += 1

    def rename(self, source: str, path: str) -> None:
        """As `os.replace`; within one folder it is whole or not at all, also where power fails."""
        self.pass_point("rename", path)
        of, found = self.locate(source), self.locate(path)
        self._check_same_disk(source, path)
        if of.node is None:
            _refuse(errno.ENOENT, source, path)
        if of.node is found.node:
            return
        self._check_rename(of, found, source, path)
        if isinstance(found.node, File):
            found.node.links -= 1
        if of.folder is found.folder:
            self._name(of.folder, {of.name: None, found.name: of.node})
        else:
            self._name(found.folder, {found.name: of.node})
            self._name(of.folder, {of.name: None})
            if isinstance(of.node, Folder):
                of.node.parent = found.folder

    def _check_rename(self, of: Location, found: Location, source: str, path: str) -> None:
        if not of.name or not found.name:
            _refuse(errno.EBUSY, source, path)
        if isinstance(of.node, Folder):
            if any(above is of.node for above in _above(found.folder)):
                _refuse(errno.EINVAL, source, path)
            if isinstance(found.node, File):
                _refuse(errno.ENOTDIR, source, path)
            if isinstance(found.node, Folder) and found.node.entries:
                _refuse(errno.ENOTEMPTY, source, path)
        elif isinstance(found.node, Folder):
            _refuse(errno.EISDIR if found.node not in _above(of.folder) else errno.ENOTEMPTY, source, path)

    def _check_same_disk(self, source: str, path: str) -> None:
        if self._disk_of(self.absolute(source))[0] is not self._disk_of(self.absolute(path))[0]:
            _refuse(errno.EXDEV, source, path)

    def list(self, path: str) -> list[tuple[str, Node]]:
        """The entries of a folder, in no order, as on disks."""
        self.pass_point("list", path)
        node = self.existing(path).node
        if not isinstance(node, Folder):
            _refuse(errno.ENOTDIR, path)
        found = list(node.entries.items())
        self.chance.shuffle(found)
        return found

    # -- how it is done

    @property
    def now_s(self) -> float:
        """Seconds since 1970 by the clock of file systems."""
        return _KEPT_OF_WALL + self.scheduler.now

    @property
    def host_name(self) -> str:
        """The name of the running task's host."""
        return self.host().name

    def _name(self, folder: Folder, names: dict[str, Node | None]) -> None:
        folder.name(self.host_name, names)
        folder.changed_s = self.now_s

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _new_folder(self, mode: int, parent: Folder | None = None) -> Folder:
        folder = Folder(self._next_number(), mode, parent)
        folder.changed_s = self.now_s
        return folder


def _above(folder: Folder) -> Iterator[Folder]:
    """A folder and those above it."""
    yield folder
    while folder.parent is not folder:
        folder = folder.parent
        yield folder


def _refuse(number: int, *paths: str) -> NoReturn:
    if len(paths) == 2:
        raise OSError(number, os.strerror(number), paths[0], None, paths[1])
    raise OSError(number, os.strerror(number), *paths)
