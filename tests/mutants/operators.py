"""The small wrong changes that can be made to a file: most of mutmut's operators, and some more.

mutmut also sets values and arguments to None, which a type checker sees, and changes the words of messages, which
decide nothing. In return statements are deleted here, branches never taken, and `min` is exchanged for `max`.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation import mutators

__all__ = ["Change", "Mutant", "mutants_of"]

Operator = Callable[[cst.CSTNode], Iterable[cst.CSTNode]]

_OPPOSITES: Mapping[str, str] = MappingProxyType({"min": "max", "max": "min", "any": "all", "all": "any"})
# Other operators number other mutants.
_OWN_TEXT = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
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
        key: the same in every run for as long as the class, function or constant around it stays as it is.
        original: the text of that, after as many empty lines as there are lines above it.
    """

    path: str
    place: str
    is_constant: bool
    first_line: int
    last_line: int
    key: str
    original: str
    _statement: cst.CSTNode
    _node: cst.CSTNode
    _other: cst.CSTNode

    def write(self) -> str:
        """`original` with the change."""
        changed = self._statement.deep_replace(self._node, self._other)
        above = len(self.original) - len(self.original.lstrip("\n"))
        code: str = cst.Module([]).code_for_node(changed)
        return "\n" * above + code.lstrip("\n")

    @property
    def change(self) -> Change:
        """The lines that differ."""
        lines = [*difflib.unified_diff(self.original.splitlines(), self.write().splitlines(), lineterm="", n=0)][3:]
        was, becomes = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
        return Change(" ".join(was), " ".join(becomes))


@dataclass(frozen=True)
class _Place:
    """The function or constant that a node belongs to, and the statement of the module around it."""

    name: str
    node: cst.CSTNode
    statement: cst.CSTNode


def mutants_of(path: str, text: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    parents = wrapper.resolve(ParentNodeProvider)
    originals = _originals(wrapper.module)
    keys: dict[cst.CSTNode, str] = {}
    numbers: Counter[cst.CSTNode] = Counter()
    mutants = []
    for node, where in wrapper.resolve(PositionProvider).items():
        operators = [operator for kind, operator in _OPERATORS if isinstance(node, kind)]
        place = _place(node, parents) if operators and isinstance(where, CodeRange) else None
        if place is None:
            continue
        is_constant = not isinstance(place.node, cst.FunctionDef)
        if place.node not in keys:
            about = f"{path} {place.name} {_OWN_TEXT} {wrapper.module.code_for_node(place.node)}"
            keys[place.node] = hashlib.sha256(about.encode()).hexdigest()[:16]
        for other in (other for operator in operators for other in operator(node)):
            number = numbers[place.node]
            numbers[place.node] += 1
            mutants.append(
                Mutant(
                    path,
                    place.name,
                    is_constant,
                    where.start.line,
                    where.end.line,
                    f"{keys[place.node]}:{number}",
                    originals[place.statement],
                    place.statement,
                    node,
                    other,
                )
            )
    return sorted(mutants, key=lambda mutant: mutant.first_line)


def _originals(module: cst.Module) -> dict[cst.CSTNode, str]:
    """The text of each statement of a module, where it is in the file."""
    lines = sum(module.code_for_node(line).count("\n") for line in module.header)
    originals: dict[cst.CSTNode, str] = {}
    for statement in module.body:
        text = module.code_for_node(statement)
        originals[statement] = "\n" * lines + text
        lines += text.count("\n")
    return originals


def _place(node: cst.CSTNode, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> _Place | None:
    """The place of a node; None where it is left alone."""
    chain = [node, *_ancestors(node, parents)]
    if any(isinstance(each, _LEFT_ALONE) or _is_for_types(each) for each in chain):
        return None
    names: list[str] = []
    for each in reversed(chain):
        if isinstance(each, cst.FunctionDef) and each is not node:
            return _Place(".".join([*names, each.name.value]), each, chain[-2])
        if isinstance(each, cst.ClassDef):
            names.append(each.name.value)
    assigned = next((each for each in chain if isinstance(each, cst.Assign | cst.AnnAssign)), None)
    if assigned is None or names:
        return None
    target = assigned.targets[0].target if isinstance(assigned, cst.Assign) else assigned.target
    is_name = isinstance(target, cst.Name) and target.value != "__all__" and target is not node
    return _Place(target.value, assigned, chain[-2]) if is_name and isinstance(target, cst.Name) else None


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
            if argument.keyword is not None and not _is_default(argument):
                yield node.with_changes(args=[*node.args[:at], *node.args[at + 1 :]])


def _is_default(argument: cst.Arg) -> bool:
    """Whether it says what would be without it: that `zip` is not strict, which the linter wants said."""
    named, value = argument.keyword, argument.value
    return named is not None and named.value == "strict" and isinstance(value, cst.Name) and value.value == "False"


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
