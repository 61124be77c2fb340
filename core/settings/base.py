"""Base of the tables of a job file: strict types, and texts of a given form."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
)
from pydantic_core import CoreSchema, core_schema

from taihu.core.base.errors import ConfigError

Count = Annotated[int, Field(ge=1, le=10**9)]
Seconds = Annotated[float, Field(ge=1e-3, le=86_400)]
FilePath = Annotated[Path, Field(strict=False)]


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://")
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")


class Url(str):
    """A place in a store that fsspec knows: `s3://bucket/folder`."""

    __slots__ = ()


def path_or_url(value: object) -> Path | Url:
    """The path, or the URL, that a text is; raises ValueError, without the text where it has a password in it."""
    if isinstance(value, Path | Url):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected a path or a URL, a string, got {value!r}")
    if _URL.match(value) is None:
        return Path(value)
    if _PASSWORD.search(value) is not None:
        raise ValueError(
            "expected a URL without a password, which would get into logs; give it where the store's library looks "
            "for it, in the environment or its own file"
        )
    return Url(value.rstrip("/") if not value.endswith("://") else value)


PathOrUrl = Annotated[
    Url | Path, PlainValidator(path_or_url), PlainSerializer(str, return_type=str, when_used="json")
]


class Section(BaseModel):
    """A table of the job file: frozen, strictly typed, finite, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


@dataclass(frozen=True)
class Form:
    """The form of a text: what it is in words, and an example; whoever misses it is told these, not the pattern."""

    pattern: str
    words: str
    example: str

    def check(self, text: str) -> str:
        """`text` when it has the form; raises ValueError otherwise."""
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(f"expected {self}, got {text!r}")
        return text

    def __str__(self) -> str:
        return f"{self.words}, for example {self.example!r}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


def accepted_by(check: Callable[[str], None]) -> AfterValidator:
    """A validator of texts by `check`, whose ConfigError becomes the message."""

    def accept(text: str) -> str:
        try:
            check(text)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(accept)
