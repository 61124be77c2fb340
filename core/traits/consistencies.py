"""Consistencies: which gradients the parameters that a worker computes with may lack (docs/consistency.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from taihu.core.base.errors import ConfigError

_MOST: Final = 10_000
_NUMBER: Final = r"(0|[1-9][0-9]{0,4})"


@dataclass(frozen=True, repr=False)
class Consistency:
    """One consistency.

    Attributes:
        key: its name in a job file.
        lead: steps that a worker may be ahead of the slowest; None where nothing bounds it.
        applies_each: each worker's gradient is an update of its own; else a step's are summed first.
        spares: workers whose gradients a step's sum does without, whoever they are.
    """

    key: str
    lead: int | None = 0
    applies_each: bool = False
    spares: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def __str__(self) -> str:
        return self.key

    @property
    def is_strict(self) -> bool:
        """Whether a step has the gradients of all workers, and all of them wait for it."""
        return not self.applies_each and not self.spares

    @property
    def leaves_behind(self) -> bool:
        """Whether a step may end without a worker, which goes on with a later one."""
        return self.spares > 0


BSP: Final = Consistency("bsp")


def _bsp(_: str) -> Consistency:
    return BSP


def _ssp(number: str) -> Consistency:
    # Nobody ahead of anybody: a step as any other, by the sum.
    return Consistency(f"ssp:{number}", int(number), applies_each=int(number) > 0)


def _asynchronous(_: str) -> Consistency:
    return Consistency("async", None, applies_each=True)


def _with_spares(number: str) -> Consistency:
    return Consistency(f"bsp:N-{number}", None, spares=int(number))


class Consistencies:
    """All consistencies; beside a type in `Annotated` it reads and writes them by their keys."""

    _forms: Final = (
        (re.compile("bsp()"), _bsp),
        (re.compile(f"ssp:{_NUMBER}"), _ssp),
        (re.compile("async()"), _asynchronous),
        (re.compile(f"bsp:N-{_NUMBER}"), _with_spares),
    )

    def __str__(self) -> str:
        return "'bsp', 'ssp:K' with K up to 10000, 'async' or 'bsp:N-b' with b workers too many"

    def __getitem__(self, key: object) -> Consistency:
        """The consistency of a key, or the consistency itself.

        Raises:
            ConfigError: there is none.
        """
        found = self.find(key)
        if found is None:
            raise ConfigError(f"expected {self}, got {key!r}")
        return found

    def find(self, key: object) -> Consistency | None:
        """The consistency of a key, or the consistency itself; None where there is none."""
        if isinstance(key, Consistency):
            return key
        for form, make in self._forms:
            match = form.fullmatch(key) if isinstance(key, str) else None
            if match is not None and int(match[1] or 0) <= _MOST:
                return make(match[1])
        return None

    def _validate(self, key: object) -> Consistency:
        found = self.find(key)
        if found is None:
            raise PydanticCustomError("no_variant", "expected {words}", {"words": str(self)})
        return found

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )


CONSISTENCIES: Final = Consistencies()
