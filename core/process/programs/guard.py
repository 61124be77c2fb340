"""The surroundings of a command, looked at before anything else is imported.

No file of the user's is executed because it has the name of a module: see `leave_starting_folder`.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# A daemon of a small job opens about half as many, and libraries open some while they are imported.
_LEAST_FILES: Final = 64
_ROOT: Final = Path(__file__).parents[4].resolve()  # links to rooms lie in the package


def check_surroundings(environment: Mapping[str, str]) -> None:
    """Exit with a clear message where no command could run.

    The current folder is gone, numba would not work, or too few files may be open. The current folder, where
    `python -m` looks first, is taken off the path.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < _LEAST_FILES:
        sys.exit(
            f"error: this process may open {most} files, expected at least {_LEAST_FILES}; ulimit -n 1024 raises that"
        )
    try:
        Path.cwd()
    except OSError as error:
        sys.exit(f"error: the current folder: {error.strerror}; change to one that is there")
    leave_starting_folder(sys.path)
    if environment.get("NUMBA_DISABLE_JIT", "0").strip() not in {"", "0"}:
        sys.exit("error: NUMBA_DISABLE_JIT is set, and kernels are compiled or nothing; unset it")
    threads = environment.get("NUMBA_NUM_THREADS", "1").strip()
    if not (threads.isascii() and threads.isdecimal() and int(threads)):
        sys.exit(f"error: NUMBA_NUM_THREADS: expected a number of threads from 1, got {threads!r}; unset it")


def leave_starting_folder(path: list[str]) -> None:
    """Remove from `path` what Python put first for the way it was started, unless taihu itself lies there.

    That is the current folder for `python -m`, or the script's folder.
    """
    if sys.flags.safe_path or not path:
        return
    first = Path(path[0] or ".").resolve()
    script = Path(sys.argv[0] or ".").resolve().parent
    if first != _ROOT and first in (Path.cwd(), script):
        del path[0]


def file_in_the_way(folder: Path) -> Path | None:
    """A module in a script's folder that has taihu's own name: who imports that finds one of them alone."""
    if folder.resolve() == _ROOT:
        return None
    places = folder / "taihu.py", folder / "taihu" / "__init__.py"
    return next((place for place in places if place.exists()), None)
