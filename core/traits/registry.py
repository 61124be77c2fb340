"""Registries of variants: the built-in ones by name, and those that installed packages bring as entry points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from taihu.core.base.errors import ConfigError


@runtime_checkable
class Variant(Protocol):
    """A variant: one that is told by `key` in a job file."""

    @property
    def key(self) -> str | int:
        """The value in a job file."""
        ...


T = TypeVar("T", bound=Variant)


@dataclass(frozen=True)
class Registry(Generic[T]):
    """The variants of one thing; beside a type in `Annotated` it reads and writes them by their keys.

    Attributes:
        kind: the type of a variant.
        group: of the entry points that bring further ones; each names an object of this type.
        built_in: in the order in which messages list them.
        words: the keys in words, where a list of them is none.
    """

    kind: type[T]
    group: str
    built_in: tuple[T, ...]
    words: str = ""

    def __iter__(self) -> Iterator[T]:
        """The built-in variants."""
        return iter(self.built_in)

    def __getitem__(self, key: object) -> T:
        """The variant of a key, or the variant itself.

        Raises:
            ConfigError: there is none, or an entry point is of something else.
        """
        found = self.find(key)
        if found is None:
            raise ConfigError(f"expected {self}, got {key!r}")
        return found

    def __str__(self) -> str:
        if self.words:
            return self.words
        *others, last = (repr(variant.key) for variant in self.built_in)
        return f"{', '.join(others)} or {last}"

    def find(self, key: object) -> T | None:
        """The variant of a key, or the variant itself; None where there is none."""
        if isinstance(key, self.kind):
            return key
        # Looking for installed packages takes time: a name that is built in needs none of it.
        for variant in chain(self.built_in, self._installed()):
            # 1 == True, and no job file means that.
            if variant.key == key and type(variant.key) is type(key):
                return variant
        return None

    def _validate(self, key: object) -> T:
        found = self.find(key)
        if found is None:
            raise PydanticCustomError("no_variant", "expected {words}", {"words": str(self)})
        return found

    def _installed(self) -> Iterator[T]:
        for point in entry_points(group=self.group):
            variant = point.load()
            if not isinstance(variant, self.kind):
                raise ConfigError(
                    f"entry point {point.name} of {self.group}: expected a {self.kind.__name__}, got {variant!r}"
                )
            yield variant

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(_key),
        )


def _key(variant: Variant) -> str | int:
    return variant.key
