"""Values as messages: each field of a value is that of the same name in its message, converted by its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, cast

from google.protobuf.message import Message

from taihu.core.base.words import told

__all__ = ["NUMBERS", "OR_ZERO", "TOLD", "WORDS", "Kind", "checked", "each", "fields_of", "maybe", "one", "spread"]

V = TypeVar("V")


@dataclass(frozen=True)
class Kind(Generic[V]):
    """A value and what a message has of it.

    Attributes:
        to: makes the second of the first.
        of: makes the first of the second; raises FrameError where that makes no sense.
        is_optional: the field may be absent, and the value None.
        is_spread: the value is several fields, which `to` has as a mapping; `of` is given the whole message.
    """

    to: Callable[[V], Any]
    of: Callable[[Any], V]
    is_optional: bool = False
    is_spread: bool = False


_AS_IT_IS: Final = Kind[Any](lambda value: value, lambda value: value)
TOLD: Final = Kind[str](lambda text: text, told)
"""Text that comes as one line that prints."""
NUMBERS: Final = Kind[tuple[Any, ...]](tuple, tuple)
"""Numbers or texts in their order."""
WORDS: Final = Kind[Mapping[str, str]](dict, dict)
"""Texts by key."""
OR_ZERO: Final = Kind[int | None](lambda value: value or 0, lambda value: value or None)
"""A number, of which 0 says that there is none."""


def checked(kind: Kind[V], check: Callable[[V], None]) -> Kind[V]:
    """Values of a kind that `check` raises no FrameError of."""

    def of(found: Any) -> V:
        value = kind.of(found)
        check(value)
        return value

    return Kind(kind.to, of)


def each(kind: Kind[V]) -> Kind[tuple[V, ...]]:
    """Several values of a kind."""
    return Kind(lambda values: [kind.to(value) for value in values], lambda found: tuple(map(kind.of, found)))


def maybe(kind: Kind[V] = _AS_IT_IS) -> Kind[V | None]:
    """A value of a kind, or None."""
    return Kind(lambda value: None if value is None else kind.to(value), kind.of, is_optional=True)


def spread(to: Callable[[V], Mapping[str, Any]], of: Callable[[Any], V]) -> Kind[V]:
    """A value that is several fields of its message."""
    return Kind(to, of, is_spread=True)


def one(message: type[Message], name: str, kind: Kind[V] = _AS_IT_IS) -> Kind[V]:
    """A message of one field, as the value of that."""
    return Kind(lambda value: message(**{name: kind.to(value)}), lambda found: kind.of(getattr(found, name)))


def fields_of(
    message: type[Message], value: Callable[..., V], kinds: Mapping[str, Kind[Any]] = MappingProxyType({})
) -> Kind[V]:
    """A dataclass or a named tuple as a message that has its fields, those that `kinds` does not name as they are."""
    names = getattr(value, "_fields", ()) or tuple(each.name for each in fields(cast("Any", value)))
    chosen = {name: kinds.get(name, _AS_IT_IS) for name in names}

    def to(given: V) -> Message:
        made: dict[str, Any] = {}
        for name, kind in chosen.items():
            part = kind.to(getattr(given, name))
            made |= part if kind.is_spread else {name: part}
        return message(**made)

    def read(found: Message, name: str, kind: Kind[Any]) -> Any:
        if kind.is_spread:
            return kind.of(found)
        return None if kind.is_optional and not found.HasField(name) else kind.of(getattr(found, name))

    return Kind(to, lambda found: value(**{name: read(found, name, kind) for name, kind in chosen.items()}))
