"""The reading of data: decided once, by those for training, and the same for every later file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from taihu.worker.data.base.depth import Depth

Form = Literal["whole", "number", "percent", "truth", "date", "text"]
"""Of a column: whole numbers, others, percentages, true and false, moments in seconds since 1970, or texts."""


@dataclass(frozen=True)
class Column:
    """One column that becomes inputs: a number, or 1 at the place of its text among `texts`.

    Attributes:
        name: in the first line of a file.
        form: of its values.
        texts: that it may have, in the order of their inputs; empty for numbers.
        fill: the value in the place of a missing one; None where there must be none missing.
    """

    name: str
    form: Form
    texts: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def width(self) -> int:
        """The number of inputs that it becomes."""
        return len(self.texts) or 1


@dataclass(frozen=True)
class TableReading:
    """The columns of a table that become inputs, in their order.

    `decimal` is the sign before decimals in a file that does not tell; `wide` says that inputs are kept as float64.
    """

    columns: tuple[Column, ...]
    decimal: Literal[".", ","] = "."
    wide: bool = False


@dataclass(frozen=True)
class AsTrained:
    """The reading of the data that a model was trained on.

    Attributes:
        depth: the range of images of more than 8 bits; None where files tell it themselves.
        reading: of a table; None where its rows tell it.
        class_names: in the order of their numbers; empty where the data tell them.
    """

    depth: Depth | None = None
    reading: TableReading | None = None
    class_names: tuple[str, ...] = ()


NOTHING_KNOWN: Final = AsTrained()
