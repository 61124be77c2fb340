"""Passes over the rows of a matrix, one vector of adjacent columns after another, for batch normalisation.

Factors and sums of a column stay in registers from the first row to the last. Sums are float64, of all even rows and
of all odd rows, added at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from numba import types
from numba.extending import intrinsic

from taihu.kernels.nn.vectors import VECTOR_BYTES, cgutils, ir

_CHAINS: Final = 2
_DOUBLE = ir.DoubleType()


class _Tile(NamedTuple):
    """One vector of columns: the place of its first element, and how far its rows, so many, lie apart."""

    first: Any
    rows: Any
    stride: Any
    column: Any


class _Columns:
    """Writes the instructions of a pass; `data` are the addresses of arrays, which are named by their position."""

    def __init__(self, context: Any, builder: Any, dtype: Any, data: Sequence[Any]) -> None:
        self.builder = builder
        self._data = data
        self._bytes = dtype.bitwidth // 8
        lanes = VECTOR_BYTES // self._bytes
        self._vector = ir.VectorType(context.get_value_type(dtype), lanes)
        self._wide = ir.VectorType(_DOUBLE, lanes)
        self.zero = ir.Constant(self._vector, None)

    def pointer(self, position: int, offset: Any, *, wide: bool = False) -> Any:
        """The address of a vector."""
        kind = self._wide if wide else self._vector
        return self.builder.bitcast(self.builder.gep(self._data[position], [offset]), kind.as_pointer())

    def load(self, position: int, offset: Any) -> Any:
        return self.builder.load(self.pointer(position, offset), align=self._bytes)

    def store(self, value: Any, position: int, offset: Any) -> None:
        self.builder.store(value, self.pointer(position, offset), align=self._bytes)

    def widen(self, value: Any) -> Any:
        return value if self._bytes == 8 else self.builder.fpext(value, self._wide)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        product = self.builder.fmul(a, b, flags=["contract"])
        return self.builder.fadd(product, c, flags=["contract"])

    def where_positive(self, value: Any, chosen: Any) -> Any:
        """`chosen`, and zero where `value` is not positive; NaN counts as positive."""
        return self.builder.select(self.builder.fcmp_unordered("<=", value, self.zero), self.zero, chosen)

    def rectified(self, value: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", value, self.zero), self.zero, value)

    def sums(self, count: int) -> list[list[Any]]:
        """Places for sums: for every chain, `count` of them."""
        made = []
        for _ in range(_CHAINS):
            made.append([cgutils.alloca_once(self.builder, self._wide) for _ in range(count)])
            for place in made[-1]:
                self.builder.store(ir.Constant(self._wide, None), place)
        return made

    def add(self, value: Any, place: Any) -> None:
        self.builder.store(self.builder.fadd(self.builder.load(place), value), place)

    def add_product(self, a: Any, b: Any, place: Any) -> None:
        self.builder.store(self.multiply_add(a, b, self.builder.load(place)), place)

    def finish(self, chains: list[list[Any]], number: int, position: int, offset: Any) -> None:
        """Add a sum to the float64 array that is the argument at `position`."""
        total = self.builder.fadd(*(self.builder.load(chain[number]) for chain in chains))
        target = self.pointer(position, offset, wide=True)
        self.builder.store(self.builder.fadd(self.builder.load(target, align=8), total), target, align=8)

    def rows(self, place: _Tile, body: Callable[[Any, int], None]) -> None:
        """Write `body(offset of the row, chain)` for every row."""
        index = place.first.type
        one, pair = ir.Constant(index, 1), ir.Constant(index, _CHAINS)
        whole = self.builder.mul(self.builder.sdiv(place.rows, pair), pair)

        def at(row: Any) -> Any:
            return self.builder.add(place.first, self.builder.mul(row, place.stride))

        with cgutils.for_range_slice(self.builder, ir.Constant(index, 0), whole, pair) as (row, _):
            for chain in range(_CHAINS):
                body(at(self.builder.add(row, ir.Constant(index, chain))), chain)
        with cgutils.for_range_slice(self.builder, whole, place.rows, one) as (row, _):
            body(at(row), 0)


def _tile(write: Callable[[_Columns, _Tile], None]) -> Callable[..., None]:
    """`tile(arrays, row, rows, columns)` for kernels; `arrays` is a tuple whose first one gives the dtype.

    Passes over `rows` rows from `row` on of matrices of `columns` columns, as far as those make whole vectors.
    """

    def emit(typing_context: Any, arrays: Any, row: Any, rows: Any, columns: Any) -> Any:
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds, values = list(arrays.types), cgutils.unpack_tuple(builder, arguments[0])
            data = [context.make_array(k)(context, builder, v).data for k, v in zip(kinds, values, strict=True)]
            first_row, rows_, columns_ = arguments[1:]
            first = builder.mul(first_row, columns_)
            lanes = ir.Constant(columns_.type, VECTOR_BYTES * 8 // kinds[0].dtype.bitwidth)
            whole = builder.mul(builder.sdiv(columns_, lanes), lanes)
            with cgutils.for_range_slice(builder, ir.Constant(columns_.type, 0), whole, lanes) as (column, _):
                place = _Tile(builder.add(first, column), rows_, columns_, column)
                write(_Columns(context, builder, kinds[0].dtype, data), place)
            return context.get_dummy_value()

        return types.void(arrays, index, index, index), generate

    return cast(Callable[..., None], intrinsic(emit))


def _moments(columns: _Columns, place: _Tile) -> None:
    sums = columns.sums(2)

    def row(offset: Any, chain: int) -> None:
        value = columns.widen(columns.load(0, offset))
        columns.add(value, sums[chain][0])
        columns.add_product(value, value, sums[chain][1])

    columns.rows(place, row)
    columns.finish(sums, 0, 1, place.column)
    columns.finish(sums, 1, 2, place.column)


def _sums(columns: _Columns, place: _Tile) -> None:
    sums = columns.sums(1)
    columns.rows(place, lambda offset, chain: columns.add(columns.widen(columns.load(0, offset)), sums[chain][0]))
    columns.finish(sums, 0, 1, place.column)


def _affine(columns: _Columns, place: _Tile, *, rectify: bool) -> None:
    scale, shift = columns.load(2, place.column), columns.load(3, place.column)

    def row(offset: Any, chain: int) -> None:
        value = columns.multiply_add(columns.load(0, offset), scale, shift)
        columns.store(columns.rectified(value) if rectify else value, 1, offset)

    columns.rows(place, row)


def _gradient(columns: _Columns, x: Any, offset: Any, rectified: tuple[Any, Any] | None) -> Any:
    """The gradient, array 1, of the result before it was rectified."""
    dy = columns.load(1, offset)
    return dy if rectified is None else columns.where_positive(columns.multiply_add(x, *rectified), dy)


def _gradient_moments(columns: _Columns, place: _Tile, *, rectify: bool) -> None:
    mean = columns.load(2, place.column)
    rectified = (columns.load(3, place.column), columns.load(4, place.column)) if rectify else None
    sums = columns.sums(2)

    def row(offset: Any, chain: int) -> None:
        x = columns.load(0, offset)
        dy = columns.widen(_gradient(columns, x, offset, rectified))
        columns.add(dy, sums[chain][0])
        columns.add_product(dy, columns.widen(columns.builder.fsub(x, mean)), sums[chain][1])

    columns.rows(place, row)
    columns.finish(sums, 0, 5, place.column)
    columns.finish(sums, 1, 6, place.column)


def _input_gradient(columns: _Columns, place: _Tile, *, rectify: bool) -> None:
    dy_factor, x_factor, constant = (columns.load(i, place.column) for i in (3, 4, 5))
    rectified = (columns.load(6, place.column), columns.load(7, place.column)) if rectify else None

    def row(offset: Any, chain: int) -> None:
        x = columns.load(0, offset)
        dy = _gradient(columns, x, offset, rectified)
        columns.store(columns.multiply_add(dy, dy_factor, columns.multiply_add(x, x_factor, constant)), 2, offset)

    columns.rows(place, row)


# (x, sums, squares): adds the sums of x and of x * x.
moments_tile = _tile(_moments)
# (x, sums): adds the sums of x.
sums_tile = _tile(_sums)
# (x, y, scale, shift): writes y = x * scale + shift; the second one max(y, 0).
affine_tile = _tile(partial(_affine, rectify=False))
rectified_affine_tile = _tile(partial(_affine, rectify=True))
# (x, dy, mean, scale, shift, sums, products): adds the sums of dy and dy * (x - mean); of the second one, where
# x * scale + shift is positive.
gradient_moments_tile = _tile(partial(_gradient_moments, rectify=False))
rectified_gradient_moments_tile = _tile(partial(_gradient_moments, rectify=True))
# (x, dy, dx, dy_factor, x_factor, constant, scale, shift): writes dx = dy * dy_factor + x * x_factor + constant, with
# the same rule for dy.
input_gradient_tile = _tile(partial(_input_gradient, rectify=False))
rectified_input_gradient_tile = _tile(partial(_input_gradient, rectify=True))
