"""The command line of taihu in a process that notes, at each fork, what is in it: by a hook of Python's own.

`python -m support.watched_forks ARGUMENTS`; notes are lines of JSON in the file of `$NOTES`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from taihu.__main__ import run as run_taihu

__all__ = ["run"]


def run() -> NoReturn:
    """Watch this process, and none of its forks."""
    watched = os.getpid()
    notes = Path(os.environ["NOTES"]).absolute()

    def note(event: str, _: tuple[object, ...]) -> None:
        if event in {"os.fork", "subprocess.Popen", "os.posix_spawn"} and os.getpid() == watched:
            fork = {"event": event, "files": _files(), "threads": _threads(), "modules": sorted(sys.modules)}
            with notes.open("a") as file:
                file.write(json.dumps(fork) + "\n")

    sys.addaudithook(note)
    run_taihu()


def _files() -> list[str]:
    """Files that are open beside the standard streams."""
    links = {int(each.name): each for each in Path("/proc/self/fd").iterdir()}
    return [str(link.readlink()) for number, link in sorted(links.items()) if number > 2 and link.is_symlink()]


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
