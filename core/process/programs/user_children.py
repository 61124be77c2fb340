"""Processes that a user's code starts by multiprocessing: they find its modules, as who starts them does.

`spawn` and `forkserver` begin with a new interpreter. It imports the main module of whoever starts it, unless that is
a package's own, and then asks for modules by their names, of which those of the user's files are none that a path
leads to. So this module is the main one, for multiprocessing, of a process that has loaded such a file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

_VARIABLE: Final = "_TAIHU_USER_FILES"


def tell_children(file: Path) -> None:
    """Have children of this process know a file of the user's; those of a program of the user's know that program."""
    main = sys.modules["__main__"]
    if _is_ours(main):
        main.__spec__ = importlib.util.find_spec(__name__)
        others = [each for each in files_of_parent() if each != file]
        os.environ[_VARIABLE] = json.dumps([str(each) for each in (*others, file)])


def files_of_parent() -> list[Path]:
    """The files that the process that has started this one has loaded, or this one itself; the last one last."""
    return [Path(each) for each in json.loads(os.environ.get(_VARIABLE, "[]"))]


def _is_ours(main: ModuleType) -> bool:
    """Whether a main module is a command of taihu's: by its package, or the console script."""
    name = main.__spec__.name if main.__spec__ else getattr(getattr(main, "main", None), "__module__", "")
    return name.partition(".")[0] == "taihu"


if __name__ == "__mp_main__":  # in a child, before it asks for anything
    from taihu.core.process.programs.user_code import know_file

    for each in files_of_parent():
        know_file(each)
