"""Windows over NHWC images: the explicit column matrix (im2col) and back, and pooling.

A CPE takes a piece of a line: some neighbouring windows of one image, with all channels or a range of them. The lines
that it needs are clipped to the image. Values stay in their type, as nothing but maxima and short sums is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from taihu.kernels.nn.window import Window
from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.errors import BlockingError, LdmOverflowError
from taihu.kernels.sw26010.ldm import Ldm
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CPES
from taihu.kernels.sw26010.product import check_machine
from taihu.kernels.sw26010.waves import Unit, add_waves, vector_work, wave

WindowTask = Literal["im2col", "col2im", "max", "average", "max gradient", "average gradient"]

_GATHERING: Final = ("col2im", "max gradient", "average gradient")
_INDEX_BYTES: Final = 4  # Of the position of a maximum.


@dataclass(frozen=True)
class WindowPlan:
    """A task cut into units.

    A unit of im2col and pooling is a piece of one line of the output; one of the tasks that gather gradients is a
    piece of one line of the input.

    Attributes:
        task: what is done.
        batch, height, width, channels: of the images.
        out_height, out_width: positions of the window.
        window: its size, stride and padding.
        pixels: of the line that a unit makes.
        depth: channels of a unit.
        itemsize: 4 or 8 bytes.
        core_groups: among which images are divided.

    Raises:
        BlockingError: an extent is below 1, or the machine has no such elements or core groups.
        LdmOverflowError: a unit does not fit into LDM.
    """

    task: WindowTask
    batch: int
    height: int
    width: int
    channels: int
    out_height: int
    out_width: int
    window: Window
    pixels: int
    depth: int
    itemsize: int = 4
    core_groups: int = 1

    def __post_init__(self) -> None:
        check_machine(self.itemsize, self.core_groups)
        extents = (self.batch, self.height, self.width, self.channels, self.out_height, self.out_width)
        if min(*extents, self.pixels, self.depth, self.window.size, self.window.stride) < 1:
            raise BlockingError(
                f"{self.task}: expected images, windows and pieces of at least 1, seen {extents}, {self.window}, "
                f"{self.pixels} pixels, {self.depth} channels; use smaller windows or more padding"
            )
        ldm = Ldm()
        remedy = "use shorter pieces of a line or fewer channels"
        for name, size in self.unit_bytes().items():
            ldm.allocate(f"{self.task}: {name}, double buffered", 2 * size, remedy)

    @property
    def gathers(self) -> bool:
        """Whether units are pieces of the input's lines."""
        return self.task in _GATHERING

    def unit_bytes(self) -> dict[str, int]:
        """Bytes of the largest unit's tiles."""
        size, stride, _ = self.window
        item, pixels, depth = self.itemsize, self.pixels, self.depth
        if not self.gathers:
            seen = min(self.width, (pixels - 1) * stride + size)
            made = {"im2col": size * size, "max": 1 + _INDEX_BYTES / item, "average": 1}[self.task]
            return {"lines": size * seen * depth * item, "output": int(pixels * made * depth * item)}
        positions = min(self.out_width, (pixels + size - 2) // stride + 1)
        each = {"col2im": size, "max gradient": 1 + _INDEX_BYTES / item, "average gradient": 1}[self.task]
        return {"one line of windows": int(positions * each * depth * item), "gradient": pixels * depth * item}

    def lines(self) -> int:
        """Lines of one image, of which units make pieces."""
        return self.height if self.gathers else self.out_height

    def line_pixels(self) -> int:
        """Pixels of such a line."""
        return self.width if self.gathers else self.out_width

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """(pixels, channels) of the units of a line."""
        for first in range(0, self.line_pixels(), self.pixels):
            for channel in range(0, self.channels, self.depth):
                pixels = slice(first, min(first + self.pixels, self.line_pixels()))
                yield pixels, slice(channel, min(channel + self.depth, self.channels))

    def reached(self, line: int) -> range:
        """The lines of the other side that windows over, or at, `line` reach: of the image, or of positions."""
        return _reached(line, line + 1, self.window, self.height, self.out_height, self.gathers)

    def seen(self, pixels: slice) -> range:
        """The same along the line."""
        return _reached(pixels.start, pixels.stop, self.window, self.width, self.out_width, self.gathers)

    def unit(self, lines: int, pixels: slice, channels: slice) -> Unit:
        """A unit that reaches `lines` lines of the other side."""
        seen, made = len(self.seen(pixels)), pixels.stop - pixels.start
        depth, item, size = channels.stop - channels.start, self.itemsize, self.window.size
        area = size * size
        whole = depth == self.channels
        if self.task == "im2col":
            # A row of the matrix holds a whole window: with all channels, neighbouring rows are one block.
            block = (made * area * depth * item, 1) if whole else (depth * item, made * area)
            work = vector_work(made * area * depth, 0, 2, 0)
            return Unit(work, (_lines(lines, seen, depth, item, whole), Transfer((block,))))
        if self.task == "col2im":
            block = (size * depth * item, lines * seen) if whole else (depth * item, lines * seen * size)
            work = vector_work(lines * seen * size * depth, 1, 3, 1)
            return Unit(work, (Transfer((block,)), _lines(1, made, depth, item, whole)))
        here = _lines(1, made, depth, item, whole)
        there = _lines(lines, seen, depth, item, whole)
        index = _lines(1 if self.task == "max" else lines, made if self.task == "max" else seen, depth, 4, whole)
        if self.task in ("max", "average"):
            terms = made * lines * size * depth
            work = vector_work(terms, 2 if self.task == "max" else 1, 1, 1)
            return Unit(work, (there, here, index) if self.task == "max" else (there, here))
        terms = lines * seen * size * depth
        if self.task == "max gradient":
            return Unit(vector_work(terms, 2, 4, 1), (there, index, here))
        return Unit(vector_work(terms, 1, 3, 1), (there, here))

    def shares(self) -> list[range]:
        """Images of each core group."""
        share = -(-self.batch // self.core_groups)
        return [range(first, min(first + share, self.batch)) for first in range(0, self.batch, share)]

    def cost(self) -> Ledger:
        """The ledger of the task, without doing it."""
        alike = Counter(len(self.reached(line)) for line in range(self.lines()))
        ledgers = []
        for share in self.shares():
            ledger = Ledger()
            for pixels, channels in self.pieces():
                units = [(self.unit(lines, pixels, channels), count * len(share)) for lines, count in alike.items()]
                add_waves(ledger, units)
            ledgers.append(ledger)
        return self.together(ledgers)

    def together(self, ledgers: list[Ledger]) -> Ledger:
        """The ledger of all core groups."""
        image = self.height * self.width
        positions = self.out_height * self.out_width
        area = self.window.size**2 if self.task in ("im2col", "col2im") else 1
        ledger = Ledger.together(ledgers, self.batch * self.channels * (image + positions * area) * self.itemsize)
        ledger.core_groups = self.core_groups
        return ledger

    def waves(self, share: range) -> Iterator[tuple[list[tuple[int, int]], slice, slice]]:
        """((image, line) of each CPE, pixels, channels) in the order in which `cost` counts them."""
        kinds: dict[int, list[int]] = {}
        for line in range(self.lines()):
            kinds.setdefault(len(self.reached(line)), []).append(line)
        for pixels, channels in self.pieces():
            for lines in kinds.values():
                places = [(image, line) for image in share for line in lines]
                for first in range(0, len(places), CPES):
                    yield places[first : first + CPES], pixels, channels

    def count(  # noqa: PLR0917 - a place and what was seen there
        self, ledger: Ledger, cpes: int, lines: int, pixels: slice, channels: slice, moved: tuple[int, int]
    ) -> None:
        """Enter a wave that was made, with the elements that were read and written as they were counted.

        The positions of maxima are moved as often as the values beside them.
        """
        unit = self.unit(lines, pixels, channels)
        shares = [elements // cpes * self.itemsize for elements in moved]
        if self.task in ("max", "max gradient"):
            shares.insert(1 + (self.task == "max"), shares[self.task == "max"] // self.itemsize * _INDEX_BYTES)
        transfers = tuple(
            Transfer(tuple((block, share // block) for block, _ in planned.runs))
            for planned, share in zip(unit.transfers, shares, strict=True)
        )
        wave(ledger, Unit(unit.work, transfers), cpes)


def _reached(  # noqa: PLR0917 - a range, a window, two sides, a direction
    first: int, last: int, window: Window, side: int, positions: int, gathers: bool
) -> range:
    size, stride, padding = window
    if gathers:
        low = max(0, -(-(first + padding - size + 1) // stride))
        return range(low, max(low, min(positions, (last - 1 + padding) // stride + 1)))
    low = max(0, first * stride - padding)
    return range(low, max(low, min(side, (last - 1) * stride - padding + size)))


def _lines(lines: int, pixels: int, depth: int, itemsize: int, whole: bool) -> Transfer:
    """Pieces of lines of an activation: blocks of whole pixels, or of a range of channels of each."""
    if not lines * pixels:
        return Transfer(())
    return Transfer(((pixels * depth * itemsize, lines) if whole else (depth * itemsize, lines * pixels),))


def plan_windows(  # noqa: PLR0917 - the geometry of a layer
    task: WindowTask,
    images: tuple[int, int, int, int],
    positions: tuple[int, int],
    window: Window,
    itemsize: int = 4,
    core_groups: int = 1,
) -> WindowPlan:
    """The longest pieces of lines that fit into LDM, with all channels if one pixel of them does.

    Args:
        task: what is done.
        images: (B, H, W, C).
        positions: (OH, OW) of the window.
        window: its size, stride and padding.
        itemsize: 4 or 8.
        core_groups: 1 to 4.

    Raises:
        BlockingError: an extent is below 1, or the machine has no such elements or core groups.
        LdmOverflowError: not even one pixel with one channel fits.
    """
    channels = images[3]
    line = images[2] if task in _GATHERING else positions[1]

    def plan(pixels: int, depth: int) -> WindowPlan:
        return WindowPlan(task, *images, *positions, window, pixels, depth, itemsize, core_groups)

    def fits(pixels: int, depth: int) -> bool:
        try:
            plan(pixels, depth)
        except LdmOverflowError:
            return False
        return True

    depth = channels
    while depth > 1 and not fits(1, depth):
        depth = -(-depth // 2)
    low, high = 1, line
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle, depth):
            low = middle
        else:
            high = middle - 1
    return plan(low, max(depth, 1))
