"""Copies of modules of Python's library that are given stand-ins: `pathlib`, `shutil`, files and their buffers.

They are written in Python, upon `os`. So they are not imitated: their code is loaded once more, and finds the
stand-in for `os` where it imports that.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["Copies"]


class Copies:
    """Modules that are loaded once more, each once.

    Args:
        copied: names of modules; those within packages are copied with them.
        stand_ins: modules by the names of those whose places they take for the copies.
    """

    def __init__(self, copied: Sequence[str], stand_ins: Mapping[str, ModuleType]) -> None:
        self._copied = frozenset(copied)
        self._found = dict(stand_ins)
        self._builtins = {**vars(builtins), "__import__": self._import}

    def load(self, name: str) -> ModuleType:
        """The copy of a module, or its stand-in."""
        found = self._found.get(name)
        if found is not None:
            return found
        if name.split(".", 1)[0] not in self._copied:
            return importlib.import_module(name)
        spec = find_spec(name)
        assert spec is not None  # noqa: S101 - of Python's library
        module = self._found[name] = self._empty(spec)
        code = spec.loader.get_code(name)  # type: ignore[union-attr]  # of a file, or frozen
        exec(code, vars(module))  # noqa: S102 - of Python's library
        return module

    def _empty(self, spec: ModuleSpec) -> ModuleType:
        # The loader of a frozen module would not make another one.
        module = ModuleType(spec.name) if spec.origin == "frozen" else module_from_spec(spec)
        vars(module).update(__builtins__=self._builtins, __spec__=spec, __package__=spec.parent)
        return module

    def _import(
        self,
        name: str,
        globals_: Mapping[str, Any] | None = None,
        locals_: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """The `import` of copies."""
        if level:
            package = (globals_ or {})["__package__"]
            name = f"{package}.{name}".rstrip(".")
        if name not in self._found and name.split(".", 1)[0] not in self._copied:
            return builtins.__import__(name, globals_, locals_, fromlist or ())
        module = self.load(name)
        if fromlist:
            for each in fromlist:
                if each != "*" and not hasattr(module, each):
                    setattr(module, each, self.load(f"{name}.{each}"))
            return module
        return self.load(name.split(".", 1)[0])
