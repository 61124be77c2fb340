"""Types and bounds of settings in words: for errors, for `taihu job --explain` and for the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bounds
from pydantic.fields import FieldInfo

from taihu.core.settings.base import Form, Url
from taihu.core.traits.consistencies import Consistencies
from taihu.core.traits.registry import Registry

_WORDS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "a boolean, true or false",
    str: "a string",
    Path: "a path, a string",
    Url: "a path or a URL, a string",
}
_LONGEST = 80


def expected(field: FieldInfo) -> str:
    """The values that a field takes: `an integer from 1 to 100`, `'sgd', 'adam' or 'adamw'`, ..."""
    return expected_of(field.annotation, field.metadata)


def expected_of(annotation: Any, metadata: object = ()) -> str:
    """The same of an annotation and what was noted beside it."""
    if get_origin(annotation) in (Union, UnionType):
        either = [part for part in get_args(annotation) if part is not type(None)]
        if len(either) > 1:
            return ", or ".join(map(expected_of, either))
    kind, notes = _plain(annotation, tuple(_flat(metadata)))
    if get_origin(kind) is Literal:
        *others, last = map(repr, get_args(kind))
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(kind) is tuple:
        return f"a list, each {expected_of(get_args(kind)[0])}"
    form = next((note for note in notes if isinstance(note, Form | Registry | Consistencies)), None)
    return str(form) if form is not None else f"{_WORDS.get(kind, 'a table')}{_range(notes)}"


def written(value: object) -> str:
    """A value as it was given, on one line and not too long."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _plain(annotation: Any, notes: tuple[object, ...]) -> tuple[Any, tuple[object, ...]]:
    """The type without what is noted beside it, and without None."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Annotated:
        kind, *beside = get_args(annotation)
        return _plain(kind, (*_flat(beside), *notes))
    return annotation, notes


def _flat(notes: Any) -> Iterator[object]:
    for note in notes:
        if isinstance(note, FieldInfo):
            yield from note.metadata
        else:
            yield note


def _range(notes: tuple[object, ...]) -> str:
    low = next((note.ge for note in notes if isinstance(note, bounds.Ge)), None)
    above = next((note.gt for note in notes if isinstance(note, bounds.Gt)), None)
    high = next((note.le for note in notes if isinstance(note, bounds.Le)), None)
    below = next((note.lt for note in notes if isinstance(note, bounds.Lt)), None)
    step = next((note.multiple_of for note in notes if isinstance(note, bounds.MultipleOf)), None)
    start = f" from {low}" if low is not None else f" greater than {above}" if above is not None else ""
    between = " to" if low is not None else " and at most" if above is not None else " at most"
    end = f"{between} {high}" if high is not None else f"{' and' if start else ''} below {below}" if below else ""
    return f"{start}{end}{f', a multiple of {step}' if step is not None else ''}"
