"""Puts the code of a changed file into the functions of a process that has imported the file long ago."""

from __future__ import annotations
import __future__

import ast
import functools
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

__all__ = ["PatchError", "Patcher"]


class PatchError(Exception):
    """The change cannot be put into this process."""


class Patcher:
    """Changes the functions and constants that this process has when it is made.

    It finds them once: a forked process that looked at every object would copy all its memory.
    """

    def __init__(self) -> None:
        self._functions: dict[str, list[FunctionType]] = defaultdict(list)
        self._caches: list[functools._lru_cache_wrapper[object]] = []
        gc.unfreeze()  # what somebody froze would not be found
        for each in gc.get_objects():
            # `isinstance` asks an object for its class, of which objects of others warn, or import something.
            kind = type(each)
            if kind is FunctionType:
                self._functions[each.__code__.co_filename].append(each)
            # What the tests' helpers keep is no result: a process that is still needed, for one.
            elif kind is functools._lru_cache_wrapper and not each.__module__.startswith("support."):
                self._caches.append(each)

    def patch_function(self, path: str, function: str, text: str, changed: str) -> None:
        """Let `function`, a qualified name in the file `path`, run the code that it has in `changed`.

        Whoever holds the function, under whatever name, runs the new code; what was cached of old results is dropped.
        `text` and `changed` are the file's, or the statement's with the function after as many empty lines.

        Raises:
            PatchError: there is no such function, or nothing differs.
        """
        old, new = (_codes(_compiled(source, path), function) for source in (text, changed))
        patched = False
        for before, after in zip(old, new, strict=True):
            for each in self._functions.get(path, []):
                code = each.__code__
                if code.co_qualname == function and code.co_firstlineno == before.co_firstlineno:
                    each.__code__ = after
                    patched = True
        if not patched:
            raise PatchError(f"{path}: no function {function} to patch")
        self._forget_results()

    def patch_constant(self, path: str, name: str, changed: str) -> None:
        """Give the constant `name` of the module in file `path` the value that it has in the text `changed`.

        Raises:
            PatchError: there is no such constant.
        """
        # Modules of others make what is missing when they are asked for it: their dictionaries do not.
        modules = [each for each in sys.modules.values() if issubclass(type(each), ModuleType)]
        module = next((each for each in modules if vars(each).get("__file__") == path), None)
        value = _assigned(name, ast.parse(changed))
        if module is None or value is None:
            raise PatchError(f"{path}: no constant {name} to patch")
        before = vars(module)[name]
        code = compile(ast.Expression(value), path, "eval")
        after = eval(code, dict(vars(module)))  # noqa: S307 the project's own code
        for each in modules:
            if vars(each).get(name) is before:
                setattr(each, name, after)
        self._forget_results()

    def _forget_results(self) -> None:
        for each in self._caches:
            each.cache_clear()


def _compiled(text: str, path: str) -> CodeType:
    code: CodeType = compile(text, path, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    return code


def _codes(code: CodeType, qualified_name: str) -> list[CodeType]:
    return [each for each in _inside(code) if each.co_qualname == qualified_name]


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


def _assigned(name: str, tree: ast.Module) -> ast.expr | None:
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        if isinstance(statement, ast.Assign | ast.AnnAssign) and any(
            isinstance(target, ast.Name) and target.id == name for target in targets
        ):
            return statement.value
    return None
