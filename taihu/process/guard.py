"""taihu's packages have short names: nobody else's file may stand in the place of one.

Nothing but this module is imported before it has looked, so that no file of the user's is executed by its name.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = [
    "PACKAGES",
    "check_installation",
    "check_surroundings",
    "foreign_packages",
    "leave_starting_folder",
    "refuse_taken_names",
    "taken_names",
]

PACKAGES = ("protos", "kernels", "taihu", "allreduce", "ps_server", "worker")
# A daemon of a small job opens about half as many, and libraries open some while they are imported.
_LEAST_FILES: Final = 64
_ROOT: Final = Path(__file__).resolve().parents[2]


def check_installation() -> None:
    """Exit with a clear message when something else stands in the place of one of taihu's packages.

    The current folder, where `python -m` looks first, is taken off the path before.
    """
    leave_starting_folder(sys.path)
    elsewhere = {name: place for name in PACKAGES if (place := _place_elsewhere(find_spec(name))) is not None}
    if elsewhere:
        _refuse(elsewhere)
    modules = {name: importlib.import_module(name) for name in PACKAGES}
    _refuse({name: str(modules[name].__file__) for name in foreign_packages(modules)})


def check_surroundings(environment: Mapping[str, str]) -> None:
    """Exit with a clear message where no command could run.

    The current folder is gone, numba would not work, or too few files may be open.
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


def refuse_taken_names() -> None:
    """Raise ImportError where a file of a script's own has the name of one of taihu's packages."""
    for name in PACKAGES:
        place = _place_elsewhere(find_spec(name))
        if place is not None:
            raise ImportError(f"{place}: taihu has a package {name}; give this one another name", name=name)


def taken_names(folder: Path) -> list[Path]:
    """Modules in a script's folder that it does not find by their names: those are packages of taihu's."""
    if folder.resolve() == _ROOT:
        return []
    places = (place for name in PACKAGES for place in (folder / f"{name}.py", folder / name / "__init__.py"))
    return [place for place in places if place.exists()]


def foreign_packages(modules: dict[str, ModuleType]) -> list[str]:
    """The names whose module is not taihu's."""
    return [name for name, module in modules.items() if getattr(module, "__distribution__", None) != "taihu"]


def _place_elsewhere(spec: ModuleSpec | None) -> str | None:
    """The place of a package that is not beside this one; nothing of it has been executed."""
    if spec is None:
        return "missing"
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return None if Path(places[0]).resolve().parent == _ROOT else places[0]


def _refuse(places: dict[str, str]) -> None:
    if not places:
        return
    named = ", ".join(f"{name} ({place})" for name, place in places.items())
    entries = [Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if any(Path(place).resolve().is_relative_to(entry) for place in places.values() for entry in entries):
        sys.exit(f"error: PYTHONPATH puts {named} in the place of taihu's own; take that folder out of PYTHONPATH")
    sys.exit(f"error: another distribution owns {named}; install taihu in a virtual environment of its own")
