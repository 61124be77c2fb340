"""Values as messages: each field of a value is that of the same name in its message, converted by its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from taihu.core.base.words import Line, told

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


Kinds = Mapping[Any, Kind[Any]]
"""Kinds by types, of values that are not as their fields are."""

_AS_IT_IS: Final = Kind[Any](lambda value: value, lambda value: value)
_OR_ZERO: Final = Kind[Any](lambda value: value or 0, lambda value: value or None)
_PLAIN: Final[Kinds] = MappingProxyType(
    {**dict.fromkeys((str, bytes, int, float, bool), _AS_IT_IS), Line: Kind[str](lambda text: text, told)}
)


def fields_of(
    message: type[Message], value: type[V], kinds: Kinds, check: Callable[[V], None] = lambda _: None
) -> Kind[V]:
    """A dataclass or a named tuple as a message that has its fields, some of them by `kinds`.

    What was read is given to `check`, which raises FrameError where it makes no sense.
    """
    places: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
    hints = get_type_hints(value, include_extras=True)
    chosen = {name: kind_of(hint, places.get(name), kinds) for name, hint in hints.items()}

    def to(given: V) -> Message:
        made: dict[str, Any] = {}
        for name, kind in chosen.items():
            part = kind.to(getattr(given, name))
            made |= part if kind.is_spread else {name: part}
        return message(**made)

    def part_of(found: Message, name: str, kind: Kind[Any]) -> Any:
        if kind.is_spread:
            return kind.of(found)
        return None if kind.is_optional and not found.HasField(name) else kind.of(getattr(found, name))

    def of(found: Message) -> V:
        read = value(**{name: part_of(found, name, kind) for name, kind in chosen.items()})
        check(read)
        return read

    return Kind(to, of)


def kind_of(hint: Any, place: Any, kinds: Kinds) -> Kind[Any]:
    """The kind of a value of the type `hint` in the field of its name, where its message has one.

    A None is a field that is absent or, of a number that always is there, 0.
    """
    if (known := kinds.get(hint) or _PLAIN.get(hint)) is not None:
        return known
    if place is None:
        raise TypeError(f"{hint}: its message has no field of that name")
    parts = get_args(hint)
    if get_origin(hint) is UnionType and NoneType in parts:
        if not place.has_presence:
            return _OR_ZERO
        part = kind_of(reduce(or_, (each for each in parts if each is not NoneType)), place, kinds)
        return Kind(lambda value: None if value is None else part.to(value), part.of, is_optional=True)
    if get_origin(hint) is tuple:
        each = kind_of(parts[0], place, kinds)
        return Kind(lambda values: list(map(each.to, values)), lambda found: tuple(map(each.of, found)))
    if get_origin(hint) is Mapping:
        return Kind(dict, dict)
    return fields_of(GetMessageClass(place.message_type), hint, kinds)
