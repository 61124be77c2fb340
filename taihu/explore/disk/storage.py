"""Files and folders in memory, and what of them is durable: pure.

What is not synchronized is kept as changes, each of the host that made it, upon the state that is durable. A failure
of power leaves any of them that a file system may leave: POSIX promises nothing of a file that was not synchronized,
and nothing of a name whose folder was not.
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Iterator, Mapping
from random import Random
from typing import Final, NamedTuple

__all__ = ["File", "Folder", "Node", "lose_unsynchronized"]

_FOLDER_BYTES: Final = 4096


class Write(NamedTuple):
    """A change of a file: bytes from `offset` on; None in their place where its size becomes `offset`."""

    host: str
    offset: int
    data: bytes | None


class File:
    """A file.

    Attributes:
        number: that of its inode.
        mode: type and permissions, as `os.stat` tells them.
        data: the content that everybody reads. Anonymous shared memory once it is mapped.
        changed_s: when it was changed, in seconds since 1970.
        links: how many names it has.
    """

    __slots__ = ("_changes", "_durable", "changed_s", "data", "links", "mode", "number")

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = stat.S_IFREG | mode
        self.data: bytearray | mmap.mmap = bytearray()
        self.changed_s = 0.0
        self.links = 0
        self._durable = b""
        self._changes: list[Write] = []

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.data)

    def write(self, host: str, offset: int, data: bytes) -> None:
        """Put `data` at `offset`; zeros before it where the file is shorter."""
        self._changes.append(Write(host, offset, data))
        _write(self.data, offset, data)

    def resize(self, host: str, size: int) -> None:
        """Cut it, or add zeros to it."""
        self._changes.append(Write(host, size, None))
        _resize(self.data, size)

    def synchronize(self) -> None:
        """All of it is durable."""
        if self._changes:
            self._durable = bytes(self.data)
            self._changes.clear()

    def map(self) -> mmap.mmap:
        """Its memory, which can be shared; its size stays as it is from now on."""
        if not isinstance(self.data, mmap.mmap):
            mapped = mmap.mmap(-1, len(self.data))
            mapped[:] = bytes(self.data)
            self.data = mapped
        return self.data

    def lose(self, host: str, chance: Random) -> None:
        """Lose what `host` has not synchronized, all or in part; what is left is durable.

        What was written may be there up to any byte, or but for a piece in its middle, which is as it was before.
        """
        own = [each for each in self._changes if each.host == host]
        if not own or isinstance(self.data, mmap.mmap):
            return
        last = chance.randrange(len(own) + 1)
        torn = chance.random() if last < len(own) else 0.0
        missing = chance.randrange(last) if last and chance.random() < 0.5 else -1
        data, number = bytearray(self._durable), -1
        for change in self._changes:
            if change.host == host:
                number += 1
                if number > last or (number == last and change.data is None):
                    continue
            if change.data is None:
                _resize(data, change.offset)
            elif change.host != host or number not in (last, missing):
                _write(data, change.offset, change.data)
            elif number == last:
                _write(data, change.offset, change.data[: int(torn * len(change.data))])
            else:
                _write_with_hole(data, change.offset, change.data, chance)
        self.data = data
        self._durable = bytes(data)
        self._changes.clear()


def _write(data: bytearray | mmap.mmap, offset: int, new: bytes) -> None:
    if offset > len(data):
        _resize(data, offset)
    data[offset : offset + len(new)] = new


def _write_with_hole(data: bytearray, offset: int, new: bytes, chance: Random) -> None:
    """Write `new` without a piece of it: its place in the file is there, and holds what it held."""
    first, end = sorted(chance.randrange(len(new) + 1) for _ in range(2))
    if offset + len(new) > len(data):
        _resize(data, offset + len(new))
    data[offset : offset + first] = new[:first]
    data[offset + end : offset + len(new)] = new[end:]


def _resize(data: bytearray | mmap.mmap, size: int) -> None:
    if size == len(data):
        return
    if isinstance(data, mmap.mmap):
        raise BufferError("a mapped file keeps its size here")
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


class Naming(NamedTuple):
    """A change of a folder, whole or not at all: what names stand for from now on; None for nothing."""

    host: str
    names: Mapping[str, Node | None]


class Folder:
    """A folder: see `File` for its attributes; `parent` is the folder that it lies in, itself at the top."""

    __slots__ = ("_changes", "_durable", "changed_s", "entries", "mode", "number", "parent")

    def __init__(self, number: int, mode: int, parent: Folder | None = None) -> None:
        self.number = number
        self.mode = stat.S_IFDIR | mode
        self.parent = parent or self
        self.entries: dict[str, Node] = {}
        self.changed_s = 0.0
        self._durable: dict[str, Node] = {}
        self._changes: list[Naming] = []

    @property
    def size(self) -> int:
        """As file systems tell it."""
        return _FOLDER_BYTES

    @property
    def links(self) -> int:
        """Its name, its own, and those that folders in it have for it."""
        return 2 + sum(isinstance(each, Folder) for each in self.entries.values())

    def name(self, host: str, names: Mapping[str, Node | None]) -> None:
        """Let names stand for other files and folders, or for nothing."""
        self._changes.append(Naming(host, names))
        _name(self.entries, names)

    def synchronize(self) -> None:
        """All names are durable."""
        if self._changes:
            self._durable = dict(self.entries)
            self._changes.clear()

    def lose(self, host: str, chance: Random) -> None:
        """Lose what `host` has named and not synchronized, from some change on; the rest is durable."""
        own = sum(each.host == host for each in self._changes)
        if not own:
            return
        kept, entries = chance.randrange(own + 1), dict(self._durable)
        for change in self._changes:
            if change.host == host:
                kept -= 1
                if kept < 0:
                    continue
            _name(entries, change.names)
        self.entries = entries
        self._durable = dict(entries)
        self._changes.clear()


Node = File | Folder


def _name(entries: dict[str, Node], names: Mapping[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def lose_unsynchronized(top: Folder, host: str, chance: Random) -> None:
    """The power of `host` fails: see `File.lose` and `Folder.lose`, for all below `top`."""
    seen: set[int] = set()
    for node in _below(top, host, chance):
        if isinstance(node, File) and node.number not in seen:
            seen.add(node.number)
            node.lose(host, chance)


def _below(folder: Folder, host: str, chance: Random) -> Iterator[Node]:
    folder.lose(host, chance)
    for node in folder.entries.values():
        yield node
        if isinstance(node, Folder):
            node.parent = folder
            yield from _below(node, host, chance)
