"""Puts the code of a changed file into the functions of a process that has imported the file long ago."""

from __future__ import annotations

import ast
import functools
import gc
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType

__all__ = ["PatchError", "patch_constant", "patch_function"]


class PatchError(Exception):
    """The change cannot be put into this process."""


def patch_function(path: str, function: str, text: str, changed: str) -> None:
    """Let `function`, a qualified name in the file `path` of contents `text`, run the code that it has in `changed`.

    Whoever holds the function, under whatever name, runs the new code; what was cached of old results is dropped.

    Raises:
        PatchError: there is no such function, or nothing differs.
    """
    old, new = (_codes(compile(source, path, "exec", dont_inherit=True), function) for source in (text, changed))
    live = [each for each in gc.get_objects() if isinstance(each, FunctionType) and each.__code__.co_filename == path]
    patched = False
    for before, after in zip(old, new, strict=True):
        for each in live:
            code = each.__code__
            if code.co_qualname == function and code.co_firstlineno == before.co_firstlineno:
                each.__code__ = after
                patched = True
    if not patched:
        raise PatchError(f"{path}: no function {function} to patch")
    _forget_results()


def patch_constant(path: str, name: str, changed: str) -> None:
    """Give the constant `name` of the module in file `path` the value that it has in the text `changed`.

    Raises:
        PatchError: there is no such constant.
    """
    module = next((each for each in sys.modules.values() if getattr(each, "__file__", None) == path), None)
    value = _assigned(name, ast.parse(changed))
    if module is None or value is None:
        raise PatchError(f"{path}: no constant {name} to patch")
    before = vars(module)[name]
    after = eval(compile(ast.Expression(value), path, "eval"), dict(vars(module)))  # noqa: S307 the project's own code
    for each in list(sys.modules.values()):
        if getattr(each, "__dict__", {}).get(name) is before:
            setattr(each, name, after)
    _forget_results()


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


def _forget_results() -> None:
    for each in gc.get_objects():
        # What the tests' helpers keep is no result: a process that is still needed, for one.
        if isinstance(each, functools._lru_cache_wrapper) and not each.__module__.startswith("support."):
            each.cache_clear()
