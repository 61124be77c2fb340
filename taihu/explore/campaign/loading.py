"""Loading the project's modules as simulated code: with stand-ins for what a process gets from outside."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import accumulate
from types import CodeType, ModuleType
from typing import Any, Final

from taihu.core.base.errors import ConfigError

# They are never simulated: the simulation itself, arithmetic, and the source that others have stand-ins for.
_REAL: Final = (
    "taihu.explore",
    "taihu.core.base.errors",
    "taihu.core.base.words",
    "taihu.core.system",
    "taihu.kernels",
    "taihu.protos",
)
# What makes the daemons' objects and hands them paths lives in their world.
_SIMULATED: Final = "taihu.explore.world"

SourceChange = Callable[[str], str]
"""Changes the source of a module: a mutant."""


class Simulation(MetaPathFinder):
    """The finder that loads the project's modules with stand-ins.

    It has to be installed before any of them is imported: `taihu.explore.campaign.child` does. An import in such a
    module finds stand-ins where there are any, at its top and within its functions; others find Python's modules.

    Args:
        stand_ins: modules by the names of those whose places they take.
        own_builtins: functions in the place of `open` and its like.
        changes: of sources, by the names of modules.
    """

    def __init__(
        self,
        stand_ins: Mapping[str, ModuleType],
        own_builtins: Mapping[str, Any] | None = None,
        changes: Mapping[str, SourceChange] | None = None,
    ) -> None:
        self._stand_ins = stand_ins
        self._changes = dict(changes or {})
        self._builtins = {**vars(builtins), **(own_builtins or {}), "__import__": self._import}

    def install(self) -> None:
        """Take charge of all imports of the project's modules from now on.

        Raises:
            RuntimeError: some of them are loaded already.
        """
        # The packages that what is real lies in hold nothing themselves.
        holding = {name for each in _REAL for name in accumulate(each.split(".")[:-1], "{}.{}".format)}
        early = sorted(name for name in sys.modules if _is_simulated(name) and name not in holding)
        if early:
            raise RuntimeError(f"these modules were loaded before the simulation: {', '.join(early)}")
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the project, to be loaded as simulated code."""
        if not _is_simulated(fullname):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            change = self._changes.get(fullname)
            spec.loader = _SimulatedLoader(fullname, spec.loader.path, self._builtins, change)
        return spec

    def _import(
        self,
        name: str,
        globals_: Mapping[str, Any] | None = None,
        locals_: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """The `import` of simulated modules."""
        stand_in = None if level else self._stand_ins.get(name)
        if stand_in is not None:
            return stand_in
        return builtins.__import__(name, globals_, locals_, fromlist or (), level)


class _SimulatedLoader(SourceFileLoader):
    """Runs a module with the builtins of the simulation."""

    def __init__(self, fullname: str, path: str, own: dict[str, Any], change: SourceChange | None) -> None:
        super().__init__(fullname, path)
        self._own = own
        self._change = change

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with the builtins of the simulation."""
        vars(module)["__builtins__"] = self._own
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile a changed source anew: its bytecode is nobody else's."""
        if self._change is None:
            return super().get_code(fullname)
        path = self.get_filename(fullname)
        changed = self._change(self.get_data(path).decode())
        return self.source_to_code(changed.encode(), path)


def _is_simulated(name: str) -> bool:
    is_real = any(name == each or name.startswith(f"{each}.") for each in _REAL)
    return name.split(".", 1)[0] == "taihu" and (not is_real or name.startswith(_SIMULATED))


def changes_of(changes: Sequence[tuple[str, str, str]]) -> dict[str, SourceChange]:
    """Changes by modules, of texts that each module has exactly once: module, text, and that in its place.

    Raises:
        ConfigError: while such a module is loaded, that it has not the text, or more than once.
    """
    by_module: dict[str, list[tuple[str, str]]] = {}
    for module, old, new in changes:
        by_module.setdefault(module, []).append((old, new))
    return {module: _change(module, own) for module, own in by_module.items()}


def _change(module: str, own: Sequence[tuple[str, str]]) -> SourceChange:
    def change(source: str) -> str:
        for old, new in own:
            if source.count(old) != 1:
                raise ConfigError(f"{module}: expected {old!r} once, found it {source.count(old)} times")
            source = source.replace(old, new)
        return source

    return change
