"""Pixels of more than 8 bits as bytes: the range that becomes 0 to 255, told by a file or by many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["16-bit pixels", "32-bit pixels", "floating-point pixels"]
# Resampled images go a little beyond black and white.
_BEYOND: Final = 0.05
_MOST: Final = 0xFFFF_FFFF
# Floating-point images of up to 1.2 are not those of 0 to 255.
_LEAST_OF_BYTES: Final = 16


class DepthError(Exception):
    """Pixels that no range says how to show, or that are outside of it: the fault, and its remedy."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(fault)
        self.remedy = remedy


@dataclass(frozen=True)
class Depth:
    """The range of pixels of one kind: 0 is black, and `white` becomes 255.

    `white` is 1 or 255 of floating-point pixels, else 2**bits - 1 of at least 8 bits.
    """

    kind: Kind
    white: int

    def shown(self, pixels: NDArray[Any]) -> NDArray[np.uint8]:
        """`pixels` (...) as bytes; of whole numbers the upper 8 bits, others rounded.

        Raises:
            DepthError: some are outside of the range; the message says how far.
        """
        values = Values.of(self.kind, pixels)
        slack = _BEYOND * self.white if self.kind == "floating-point pixels" else 0
        if values.least < -slack or values.most > self.white + slack:
            raise DepthError(
                f"{self.kind} from {values.least:g} to {values.most:g}, expected 0 to {self.white:g} as of others",
                "bring all of them to one range",
            )
        shown: NDArray[np.float64 | np.int64]
        if self.white == 1:
            shown = np.rint(pixels.clip(0, 1) * 255)
        elif self.kind == "floating-point pixels" and self.white == 255:
            shown = np.rint(pixels.clip(0, 255))
        else:
            shown = pixels.clip(0, self.white).astype(np.int64) >> (self.white.bit_length() - 8)
        return shown.astype(np.uint8)


@dataclass(frozen=True)
class Values:
    """The least and the greatest value of pixels of one kind."""

    kind: Kind
    least: float
    most: float

    @classmethod
    def of(cls, kind: Kind, pixels: NDArray[Any]) -> Values:
        """Those of `pixels`.

        Raises:
            DepthError: some are no numbers.
        """
        least, most = float(pixels.min()), float(pixels.max())
        if not (np.isfinite(least) and np.isfinite(most)):
            raise DepthError("pixels that are not finite", "replace them")
        return cls(kind, least, most)

    def beside(self, other: Values) -> Values:
        """The values of both."""
        return Values(self.kind, min(self.least, other.least), max(self.most, other.most))


def whole_range(kind: Kind) -> Depth:
    """The range of pixels of one kind where nothing but the file tells it.

    Raises:
        DepthError: that says nothing.
    """
    if kind != "16-bit pixels":
        raise DepthError(f"{kind}, of which nothing says which is white", "save it with 8 or 16 bits")
    return Depth(kind, 0xFFFF)


def depth_of(values: Values) -> Depth:
    """The range that pixels with such values have: 1 or 255, or 2**bits - 1 of 10, 12, 14, 16 ... bits.

    Raises:
        DepthError: they tell none, for some are negative, or all little more than 1.
    """
    floating = values.kind == "floating-point pixels"
    if floating and values.least >= -_BEYOND and values.most <= 1 + _BEYOND:
        return Depth(values.kind, 1)
    if values.least < 0 or values.most > _MOST or (floating and values.most < _LEAST_OF_BYTES):
        expected = "0 to 1 or 0 to 255" if floating else "0 to 255"
        raise DepthError(f"{values.kind} from {values.least:g} to {values.most:g}", f"bring them to {expected}")
    bits = max(8, int(values.most).bit_length())
    return Depth(values.kind, (1 << bits + bits % 2) - 1)


def shown_range(values: Values, depth: Depth) -> str:
    """Words on a range that files did not tell; nothing for the usual one."""
    if depth == Depth("16-bit pixels", 0xFFFF):
        return ""
    most = f"{values.most:,.0f}" if values.most.is_integer() else f"{values.most:,g}"
    return f"{depth.kind} up to {most} are taken for a range of 0 to {depth.white:,}"
