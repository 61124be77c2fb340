"""A parser that is given anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SeveralLinesError", "Target"]


class SeveralLinesError(Exception):
    """A message to people is not one line."""


@dataclass(frozen=True)
class Target:
    """A parser by name, what it may raise, and inputs that it takes.

    Attributes:
        name: of the target, and of its folder in tests/testdata/fuzz.
        make: of a folder that it may write in, what is called with an input. It raises AssertionError where a refused
            input has changed something.
        errors: documented ones.
        seeds: inputs that are changed.
    """

    name: str
    make: Callable[[Path], Callable[[bytes], object]]
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes] = field(repr=False, default=(b"",))

    def takes(self, call: Callable[[bytes], object], data: bytes) -> bool:
        """Whether an input is taken, by what `make` made; raises what is no documented error."""
        try:
            call(data)
        except self.errors as error:
            if len(str(error).splitlines()) > 1:
                raise SeveralLinesError(f"{self.name}: {error!r}") from error
            return False
        return True
