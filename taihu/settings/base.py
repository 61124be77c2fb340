"""Base of the tables of a job file: strict types, and texts of a given form."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from taihu.errors import ConfigError

__all__ = ["Count", "FilePath", "Form", "Seconds", "Section", "accepted_by"]

Count = Annotated[int, Field(ge=1, le=10**9)]
Seconds = Annotated[float, Field(ge=1e-3, le=86_400)]
FilePath = Annotated[Path, Field(strict=False)]


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
