"""Rectangles of tensors: what a range of an arena and the columns of a spread layer have in common. Pure.

An element of a model is known by its tensor's name, its row and its column, whatever else lies beside it: workers
that spread some layers exchange another arena than those that exchange all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.core.model.layout import Layout


class Block(NamedTuple):
    """Some rows and columns of a tensor, whose values lie row by row, from `place` on, in some flat array.

    The last axis of a tensor is its columns, all others together are its rows.
    """

    tensor: str
    rows: range
    columns: range
    place: int

    @property
    def elements(self) -> int:
        """Number of values."""
        return len(self.rows) * len(self.columns)

    @property
    def stop(self) -> int:
        """The place behind the last value."""
        return self.place + self.elements

    def view(self, values: NDArray[Any], rows: range, columns: range) -> NDArray[Any]:
        """The values of some of its rows and columns in the flat array."""
        own = values[self.place : self.stop].reshape(len(self.rows), len(self.columns))
        return own[_within(rows, self.rows), _within(columns, self.columns)]


class Overlap(NamedTuple):
    """Rows and columns that are wanted, and held."""

    wanted: Block
    held: Block
    rows: range
    columns: range


class Held:
    """Blocks by their tensors."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._by_tensor: dict[str, list[Block]] = defaultdict(list)
        for block in blocks:
            self._by_tensor[block.tensor].append(block)

    def __contains__(self, tensor: str) -> bool:
        """Whether some of the tensor is here."""
        return tensor in self._by_tensor

    def overlaps(self, wanted: Iterable[Block]) -> Iterator[Overlap]:
        """All that is wanted and here."""
        for block in wanted:
            for held in self._by_tensor.get(block.tensor, ()):
                rows, columns = _common(block.rows, held.rows), _common(block.columns, held.columns)
                if rows and columns:
                    yield Overlap(block, held, rows, columns)


def tensor_name(layer: str, tensor: str) -> str:
    """The name of a tensor within its model."""
    return f"{layer}/{tensor}"


def blocks_of(layout: Layout, bounds: NDArray[np.int64]) -> Iterator[Block]:
    """Ranges of a layout, shape (k, 2), as blocks whose values lie one after the other in the order of the ranges."""
    tensors = list(_tensors(layout))
    starts = np.array([start for _, _, start in tensors], dtype=np.int64)
    place = 0
    for start, stop in bounds.tolist():
        # The last tensor that begins there, or before: of two at one place the first has no elements.
        first = max(0, int(np.searchsorted(starts, start, side="right")) - 1)
        for index in range(first, len(tensors)):
            name, shape, begin = tensors[index]
            if begin >= stop:
                break
            width, end = shape[-1] if shape else 1, begin + int(np.prod(shape, dtype=np.int64))
            for rows, columns in _rectangles(max(start, begin) - begin, min(stop, end) - begin, width):
                block = Block(name, rows, columns, place)
                place = block.stop
                yield block


def column_block(tensor: str, shape: Sequence[int], columns: range, place: int = 0) -> Block:
    """All rows of some columns of a tensor of `shape`."""
    return Block(tensor, range(int(np.prod(shape[:-1], dtype=np.int64))), columns, place)


def _tensors(layout: Layout) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, shape and first element of every tensor."""
    start = 0
    for layer in layout.layers:
        for tensor in layer.tensors:
            yield tensor_name(layer.name, tensor.name), tensor.shape, start
            start += tensor.elements


def _rectangles(start: int, stop: int, width: int) -> Iterator[tuple[range, range]]:
    """Elements [start, stop) of a matrix of rows of `width`: the rest of a row, whole rows, the beginning of one."""
    while start < stop:
        row, column = divmod(start, width)
        if column or stop - start < width:
            end = min(width, column + stop - start)
            yield range(row, row + 1), range(column, end)
            start += end - column
        else:
            rows = (stop - start) // width
            yield range(row, row + rows), range(width)
            start += rows * width


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _within(some: range, of: range) -> slice:
    return slice(some.start - of.start, some.stop - of.start)
