"""The small wrong changes that can be made to a file: most of mutmut's operators, and some more.

mutmut also sets values and arguments to None, which a type checker sees, and changes the words of messages, which
decide nothing. In return statements are deleted here, branches never taken, and `min` is exchanged for `max`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation import mutators

__all__ = ["Change", "Mutant", "mutants_of"]

Operator = Callable[[cst.CSTNode], Iterable[cst.CSTNode]]

_OPPOSITES: Mapping[str, str] = MappingProxyType({"min": "max", "max": "min", "any": "all", "all": "any"})
# What cannot be changed in a process that has imported the module, what decides nothing, and what is there for types.
_LEFT_ALONE = (cst.Annotation, cst.Decorator, cst.Param, cst.Import, cst.ImportFrom, cst.Assert, cst.Raise)


@dataclass(frozen=True)
class Change:
    """The lines of a file that a mutant changes, without their indentation."""

    was: str
    becomes: str


@dataclass(frozen=True)
class Mutant:
    """One small wrong change.

    Attributes:
        path: of the file, relative to the root.
        place: qualified name of the function, or the name of a constant of the module.
        is_constant: which of both.
        first_line, last_line: where the changed node is.
    """

    path: str
    place: str
    is_constant: bool
    first_line: int
    last_line: int
    _module: cst.Module
    _node: cst.CSTNode
    _other: cst.CSTNode

    @property
    def original(self) -> str:
        """The text of the whole file without it."""
        return str(self._module.code)

    def write(self) -> str:
        """The text of the whole file with the change."""
        changed = self._module.deep_replace(self._node, self._other)
        return str(changed.code) if isinstance(changed, cst.Module) else ""

    def change(self, text: str) -> Change:
        """The change of `text`, written by `write`, against the file."""
        lines = [*difflib.unified_diff(self.original.splitlines(), text.splitlines(), lineterm="", n=0)][3:]
        was, becomes = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
        return Change(" ".join(was), " ".join(becomes))


def mutants_of(path: str, text: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    parents = wrapper.resolve(ParentNodeProvider)
    mutants = []
    for node, where in wrapper.resolve(PositionProvider).items():
        operators = [operator for kind, operator in _OPERATORS if isinstance(node, kind)]
        place = _place(node, parents) if operators and isinstance(where, CodeRange) else None
        if place is None:
            continue
        mutants += [
            Mutant(path, *place, where.start.line, where.end.line, wrapper.module, node, other)
            for operator in operators
            for other in operator(node)
        ]
    return sorted(mutants, key=lambda mutant: mutant.first_line)


def _place(node: cst.CSTNode, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> tuple[str, bool] | None:
    """The function or constant that a node belongs to; None where it is left alone."""
    chain = [node, *_ancestors(node, parents)]
    if any(isinstance(each, _LEFT_ALONE) or _is_for_types(each) for each in chain):
        return None
    names: list[str] = []
    for each in reversed(chain):
        if isinstance(each, cst.FunctionDef) and each is not node:
            return ".".join([*names, each.name.value]), False
        if isinstance(each, cst.ClassDef):
            names.append(each.name.value)
    statement = next((each for each in chain if isinstance(each, cst.Assign | cst.AnnAssign)), None)
    if statement is None or names:
        return None
    target = statement.targets[0].target if isinstance(statement, cst.Assign) else statement.target
    is_name = isinstance(target, cst.Name) and target.value != "__all__" and target is not node
    return (target.value, True) if is_name and isinstance(target, cst.Name) else None


def _is_for_types(node: cst.CSTNode) -> bool:
    name = node.value if isinstance(node, cst.Subscript) else node.func if isinstance(node, cst.Call) else None
    return isinstance(name, cst.Name) and name.value in ("Literal", "TypeVar")


def _ancestors(node: cst.CSTNode, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> Iterator[cst.CSTNode]:
    while node in parents:
        node = parents[node]
        yield node


def _short_string(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A name becomes another one; words for people stay."""
    if isinstance(node, cst.SimpleString) and " " not in node.value and len(node.quote) == 1:
        yield node.with_changes(value=f"{node.prefix}{node.quote}XX{node.value[len(node.prefix) + 1 :]}")


def _keyword_left_out(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Call):
        for at, argument in enumerate(node.args):
            if argument.keyword is not None:
                yield node.with_changes(args=[*node.args[:at], *node.args[at + 1 :]])


def _opposite(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in _OPPOSITES:
        yield node.with_changes(func=cst.Name(_OPPOSITES[node.func.value]))


def _never(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.If):
        yield node.with_changes(test=cst.Name("False"), whitespace_before_test=cst.SimpleWhitespace(" "))


def _deleted(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Calls, raises and assignments to what outlives the function are left out; less is a name that is not there."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return
    (statement,) = node.body
    does = isinstance(statement, cst.AugAssign | cst.Raise | cst.Del)
    does |= isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call)
    if isinstance(statement, cst.Assign):
        does |= isinstance(statement.targets[0].target, cst.Attribute | cst.Subscript)
    if does:
        yield node.with_changes(body=[cst.Pass()])


_OPERATORS: Sequence[tuple[type[cst.CSTNode], Operator]] = (
    *(
        (kind, operator)
        for kind, operator in mutators.mutation_operators
        if operator
        not in (
            mutators.operator_string,
            mutators.operator_assignment,
            mutators.operator_arg_removal,
            mutators.operator_dict_arguments,
        )
    ),
    (cst.SimpleString, _short_string),
    (cst.Call, _keyword_left_out),
    (cst.Call, _opposite),
    (cst.If, _never),
    (cst.SimpleStatementLine, _deleted),
)
