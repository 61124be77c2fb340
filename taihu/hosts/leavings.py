"""Words and files that the processes of this host leave: each goes to the launcher, and their ends behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taihu.hosts.frames import text_of
from taihu.hosts.streams import Streams
from taihu.local.processes.processes import LocalProcesses

_PIECE: Final = 1 << 16
_TRACE: Final = "trace-"


class Leavings:
    """Tells what has come since it was told last.

    Args:
        folder: in which processes leave results, and traces when they end.
        processes: whose logs are told, too.
        streams: to the launcher.
    """

    def __init__(self, folder: Path, processes: LocalProcesses, streams: Streams) -> None:
        self._folder = folder
        self._processes = processes
        self._streams = streams
        self._read: dict[str, int] = {}
        self._ended: set[str] = set()
        self._seen: dict[Path, tuple[int, int]] = {}

    def begin(self, name: str) -> None:
        """A process of this name is about to be started."""
        self._ended.discard(name)

    def forget(self, name: str) -> None:
        """A process has been ended in the midst: what it has left is of a life that is over."""
        self._ended.discard(name)
        for path in self._files(name):
            path.unlink(missing_ok=True)
            self._seen.pop(path, None)

    def tell(self) -> None:
        """Tell everything that is new; a process has ended when all of its words have been told."""
        ended = [each for each in self._processes.ended if each.name not in self._ended]
        self._streams.pass_on()
        names = self._processes.names
        for name in names:
            self._tell_log(name)
            self._tell_file(self._results(name))
        if self._streams.is_full:
            return
        for each in ended:
            for path in self._files(each.name):
                self._tell_file(path)
            self._ended.add(each.name)
            self._streams.say(ended=each.name, code=each.exit_code, given_up=each.given_up)

    def _tell_log(self, name: str) -> None:
        path = self._processes.log_of(name)
        with path.open("rb") as log:
            read = self._read.get(name, 0)
            # A daemon that begins anew begins its log anew.
            log.seek(read if read <= path.stat().st_size else 0)
            while not self._streams.is_full and (piece := log.read(_PIECE)):
                self._streams.say(log=name, data=text_of(piece))
            self._read[name] = log.tell()

    def _tell_file(self, path: Path) -> None:
        """Tell the content of a file that is there, if it is another one than before."""
        try:
            facts = path.stat()
            state = (facts.st_mtime_ns, facts.st_size)
            if self._seen.get(path) == state:
                return
            content = path.read_bytes()
        except FileNotFoundError:
            return
        self._seen[path] = state
        self._streams.say(file=path.name, data=text_of(content))

    def _results(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-')}.json"

    def _files(self, name: str) -> list[Path]:
        results = self._results(name)
        return [results, results.with_name(f"{_TRACE}{results.name}")]
