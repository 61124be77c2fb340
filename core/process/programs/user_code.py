"""Functions in files of the user's own: loaded, called, and their mistakes told in one line.

Modules beside such a file are found after all that is installed, so that none stands in the place of a package. What
goes wrong in the user's code is told with file, line and cause; the traceback is logged where a log has been set up,
and stays the cause of the error raised.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import structlog

from taihu.core.base.errors import ConfigError, RunError, TaihuError
from taihu.core.process.programs.user_children import tell_children

T = TypeVar("T")

_FORM: Final = "path/to/file.py:function"
# Packages that taihu had at the top, whose names are everybody's.
_FORMER: Final = frozenset({"allreduce", "kernels", "protos", "ps_server", "worker"})
_OURS: Final = Path(__file__).parents[3]  # the package, by whose links its rooms are loaded


def load_function(
    spec: str, *, thing: str = "own", error: type[ConfigError] = ConfigError, signature: str = "function(...)"
) -> Callable[..., Any]:
    """Load a function from a file of the user's; calling it raises `error` for whatever goes wrong in it.

    The file is executed anew by every call. Modules in its folder can be imported by it, now and later.

    Args:
        spec: "path/to/file.py:function"; the path is relative to the current folder, or begins with `~`.
        thing: what the file holds, for messages: "model", "data".
        error: raised for every mistake.
        signature: how the function is called, for messages.

    Raises:
        ConfigError: as `error`: there is no such file or function, or the file fails; the message has file and line.
    """
    path, name = split_function(spec, thing=thing, error=error)
    with explained(path, thing=thing, error=error):
        module = _load(path)
    if module is None:
        raise error(f"{thing} file {path} is not a Python file; give {_FORM}")
    function = getattr(module, name, None)
    if not callable(function):
        known = ", ".join(key for key, value in vars(module).items() if _is_own_function(value, module)) or "none"
        raise error(
            f"{thing} file {path} has no function {name!r} (it has: {known}); give {path}:function with {signature}"
        )
    return _explaining(function, path, thing, error)


def load_object(spec: str, kind: type[T], *, thing: str = "own", error: type[ConfigError] = ConfigError) -> T:
    """Load an object of a `kind` from a file of the user's, "path/to/file.py:NAME"; raises as `load_function`."""
    path, name = split_function(spec, thing=thing, error=error)
    with explained(path, thing=thing, error=error):
        module = _load(path)
    found = None if module is None else getattr(module, name, None)
    if not isinstance(found, kind):
        known = ", ".join(key for key, value in vars(module).items() if isinstance(value, kind)) if module else ""
        raise error(f"{thing} file {path} has no {kind.__name__} {name!r} (it has: {known or 'none'})")
    return found


def split_function(spec: str, *, thing: str = "own", error: type[ConfigError] = ConfigError) -> tuple[Path, str]:
    """File and function of "path/to/file.py:function"; raises `error` when there is no such file."""
    file, _, name = spec.rpartition(":")
    path = Path(file).expanduser()
    if not file or not path.is_file():
        raise error(f"{thing} file {file or spec} does not exist; give {_FORM}")
    return path, name


@contextmanager
def explained(
    path: Path, *, thing: str = "own", error: type[ConfigError] = ConfigError, line: int | None = None
) -> Iterator[None]:
    """Turn what the user's code in `path` raises into an `error` of one line, and log the traceback.

    `line` is told where the traceback has no line of the user's. Errors of the run itself pass.
    """
    try:
        yield
    except RunError:
        raise
    except (Exception, SystemExit) as raised:  # whatever the user's code raises
        place = _place(raised, path, line)
        if structlog.is_configured():
            structlog.get_logger().error(f"{thing} failed", place=place, exc_info=raised)
        raise error(f"{thing} {place}: {_cause(raised)}") from raised


@contextmanager
def own_mistakes_told() -> Iterator[None]:
    """Turn what passed through a file of the user's into a RunError that names file and line; log the traceback."""
    try:
        yield
    except TaihuError:
        raise
    except Exception as raised:
        told = user_line(raised)
        if told is None:
            raise
        if structlog.is_configured():
            structlog.get_logger().error("own code failed", place=told, exc_info=raised)
        raise RunError(told) from raised


def user_line(raised: BaseException) -> str | None:
    """`path line N: cause` of an error that passed through a file of the user's; None when it did not."""
    folders = next((finder.folders for finder in sys.meta_path if isinstance(finder, _UserFolders)), [])
    for folder in folders:
        found = _deepest(raised, Path(folder))
        if found is not None:
            return f"{found[0]} line {found[1]}: {_cause(raised)}"
    return None


class _UserFolders(MetaPathFinder):
    """Finds modules in folders of the user's; the last finder, asked when nobody else knows the name."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.files: dict[str, Path] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of a file, or in the folders; what lies in packages is found by their own paths."""
        if fullname in self.files:
            return importlib.util.spec_from_file_location(fullname, self.files[fullname])
        return None if path is not None else PathFinder.find_spec(fullname, self.folders, target)

    def put_first(self, folder: str) -> None:
        """Search `folder` before the others, and forget modules of the others that it has under the same name."""
        others = {other for other in self.folders if other != folder}
        self.folders[:] = [folder, *(other for other in self.folders if other != folder)]
        namesakes = [name for name, module in sys.modules.items() if _home(module) in others and _has(folder, name)]
        for name in [key for key in sys.modules if key.partition(".")[0] in namesakes]:
            del sys.modules[name]


def _home(module: ModuleType) -> str | None:
    """The folder in which a module that is in no package was found."""
    file = getattr(module, "__file__", None)
    if file is None or "." in module.__name__:
        return None
    return str(Path(file).parents[1 if hasattr(module, "__path__") else 0])


def _has(folder: str, name: str) -> bool:
    return PathFinder.find_spec(name, [folder]) is not None


def know_file(path: Path) -> str:
    """The name of the module of a file of the user's, which can be imported from now on, as those beside it."""
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _UserFolders)), None)
    if finder is None:
        finder = _UserFolders()
        sys.meta_path.append(finder)
    finder.put_first(str(path.parent))
    # The name must not meet a package's; dataclasses look modules up by it.
    name = f"_taihu_user_{zlib.crc32(str(path).encode()):08x}"
    finder.files[name] = path
    return name


def _load(path: Path) -> ModuleType | None:
    """Execute the file as a new module; None when its name is not a Python file's."""
    resolved = path.resolve()
    if importlib.util.spec_from_file_location("", resolved) is None:
        return None
    name = know_file(resolved)
    tell_children(resolved)
    spec = importlib.util.find_spec(name)
    assert spec is not None  # noqa: S101 - it is known
    assert spec.loader is not None  # noqa: S101 - of a file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _explaining(function: Callable[..., Any], path: Path, thing: str, error: type[ConfigError]) -> Callable[..., Any]:
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with explained(path, thing=thing, error=error, line=line):
            return function(*arguments, **named)

    return call


def _is_own_function(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _place(raised: BaseException, path: Path, line: int | None) -> str:
    """The deepest line of the user's that led to the error, by the path that the user gave."""
    folder = path.resolve().parent
    found = _deepest(raised, folder)
    if found is not None:
        return f"{path.parent / found[0].relative_to(folder)} line {found[1]}"
    return str(path) if line is None else f"{path} line {line}"


def _deepest(raised: BaseException, folder: Path) -> tuple[Path, int] | None:
    lines = [(Path(frame.f_code.co_filename), number) for frame, number in traceback.walk_tb(raised.__traceback__)]
    if isinstance(raised, SyntaxError) and raised.filename is not None and raised.lineno is not None:
        lines.append((Path(raised.filename), raised.lineno))
    return next((place for place in reversed(lines) if _is_users(place[0], folder)), None)


def _is_users(file: Path, folder: Path) -> bool:
    """Whether a file in `folder` is neither installed nor taihu's own."""
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.is_relative_to(folder) and not any(file.is_relative_to(other) for other in (*installed, _OURS))


def _cause(raised: BaseException) -> str:
    words = raised.msg if isinstance(raised, SyntaxError) else str(raised)
    text = " ".join(words.split())
    if isinstance(raised, ModuleNotFoundError) and (raised.name or "").partition(".")[0] in _FORMER:
        return f"{text}; what taihu has of that name is imported as taihu.engine, or below taihu"
    return text if isinstance(raised, TaihuError) else f"{type(raised).__name__}: {text}".removesuffix(": ")
