"""Blocks of a matrix product that live in vector registers: what convolutions and products are made of.

LLVM's loop vectoriser does not keep a block of sums in registers over a loop, so these are written as vector
instructions. A tile is ROWS x (vectors * LANES) sums; every turn of its innermost loop loads `vectors` vectors of the
right factor, and multiplies each with ROWS elements of the left one, which are spread over a vector. A sum takes the
products one after another, with fused multiply-adds where the processor has them: its bits depend on the order of the
products alone, not on how a result is cut into tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from numba import types
from numba.extending import intrinsic

from kernels.nn.vectors import VECTOR_BYTES, cgutils, ir

__all__ = ["gradient_tile", "window_tile"]

_UNROLLED: Final = 4


class _Tile:
    """Writes the instructions of one tile into a kernel."""

    def __init__(self, context: Any, builder: Any, dtype: Any, rows: int, vectors: int) -> None:
        self._builder = builder
        self._rows, self._vectors = rows, vectors
        self._element_bytes = dtype.bitwidth // 8
        self._lanes = VECTOR_BYTES // self._element_bytes
        self._vector = ir.VectorType(context.get_value_type(dtype), self._lanes)
        self._index = context.get_value_type(types.intp)
        self._sums = [[cgutils.alloca_once(builder, self._vector) for _ in range(vectors)] for _ in range(rows)]

    def at(self, pointer: Any, *offsets: Any) -> Any:
        """The address so many elements further."""
        for offset in offsets:
            pointer = self._builder.gep(pointer, [offset])
        return pointer

    def number(self, value: int) -> Any:
        return ir.Constant(self._index, value)

    def _vector_at(self, pointer: Any, number: int) -> Any:
        place = self._builder.gep(pointer, [self.number(number * self._lanes)])
        return self._builder.bitcast(place, self._vector.as_pointer())

    def load(self, pointer: Any) -> list[Any]:
        """`vectors` vectors, one behind another."""
        return [
            self._builder.load(self._vector_at(pointer, v), align=self._element_bytes) for v in range(self._vectors)
        ]

    def start(self, row: int, values: Sequence[Any]) -> None:
        for place, value in zip(self._sums[row], values, strict=True):
            self._builder.store(value, place)

    def start_with_zero(self) -> None:
        for row in range(self._rows):
            self.start(row, [ir.Constant(self._vector, None)] * self._vectors)

    def multiply(self, left: Sequence[Any], right: Any) -> None:
        """Add the outer product of the elements at the addresses `left` and the vectors at the address `right`."""
        builder = self._builder
        vectors = self.load(right)
        for row, address in enumerate(left):
            element = builder.load(address)
            lane = builder.insert_element(ir.Constant(self._vector, ir.Undefined), element, ir.Constant(_INT32, 0))
            spread = builder.shuffle_vector(
                lane, ir.Constant(self._vector, ir.Undefined), ir.Constant(ir.VectorType(_INT32, self._lanes), None)
            )
            for place, vector in zip(self._sums[row], vectors, strict=True):
                product = builder.fmul(spread, vector, flags=["contract"])
                builder.store(builder.fadd(builder.load(place), product, flags=["contract"]), place)

    def finish(self, row: int, pointer: Any, *, add: bool) -> None:
        """Write the sums of a row to the address, or add them to what is there."""
        builder = self._builder
        before = self.load(pointer) if add else None
        for v, place in enumerate(self._sums[row]):
            value = builder.load(place)
            if before is not None:
                value = builder.fadd(before[v], value)
            builder.store(value, self._vector_at(pointer, v), align=self._element_bytes)


_INT32 = ir.IntType(32)


def _data(context: Any, builder: Any, signature: Any, arguments: Sequence[Any], position: int) -> Any:
    return context.make_array(signature.args[position])(context, builder, arguments[position]).data


def window_tile(rows: int, vectors: int) -> Callable[..., None]:
    """A tile of a convolution, `tile(x, offsets, pixel, shift, lines, line_stride, inner, ...)` for kernels.

    The other arguments are `weight, first, panel_stride, start, y, y_first, row_stride`.

    For r < `rows` and every filter f of the tile:
    y[y_first + r * row_stride + f] = start[f] + sum over l < lines, i < inner, in this order, of
    x[offsets[pixel + r] + shift + l * line_stride + i] * weight[first + l * panel_stride + i * width + f];
    width = vectors * LANES.

    All arrays are one-dimensional and contiguous, `x`, `weight`, `start` and `y` of one dtype, `offsets` int64.
    Nothing is checked.
    """

    def emit(  # noqa: PLR0917 - as kernels call it
        typing_context: Any,
        x: Any,
        offsets: Any,
        pixel: Any,
        shift: Any,
        lines: Any,
        line_stride: Any,
        inner: Any,
        weight: Any,
        first: Any,
        panel_stride: Any,
        start: Any,
        y: Any,
        y_first: Any,
        row_stride: Any,
    ) -> Any:
        index = types.intp
        typed = types.void(x, offsets, *[index] * 5, weight, index, index, start, y, index, index)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            tile = _Tile(context, builder, x.dtype, rows, vectors)
            x_data, offsets_data, weight_data, start_data, y_data = (
                _data(context, builder, signature, arguments, i) for i in (0, 1, 7, 10, 11)
            )
            pixel_, shift_, lines_, line_stride_, inner_ = arguments[2:7]
            first_, panel_stride_ = arguments[8:10]
            y_first_, row_stride_ = arguments[12:]
            x_data = tile.at(x_data, shift_)
            width = tile.number(vectors * VECTOR_BYTES * 8 // x.dtype.bitwidth)
            bases = [
                tile.at(x_data, builder.load(tile.at(offsets_data, pixel_, tile.number(r)))) for r in range(rows)
            ]
            begin = tile.load(start_data)
            for r in range(rows):
                tile.start(r, begin)
            whole = builder.mul(builder.sdiv(inner_, tile.number(_UNROLLED)), tile.number(_UNROLLED))
            weight_data = tile.at(weight_data, first_)
            with cgutils.for_range(builder, lines_) as line:
                offset = builder.mul(line.index, line_stride_)
                panel = tile.at(weight_data, builder.mul(line.index, panel_stride_))
                starts = [tile.at(base, offset) for base in bases]

                def turn(i: Any) -> None:
                    tile.multiply([tile.at(s, i) for s in starts], tile.at(panel, builder.mul(i, width)))

                with cgutils.for_range_slice(builder, tile.number(0), whole, tile.number(_UNROLLED)) as (i, _):
                    for ahead in range(_UNROLLED):
                        turn(builder.add(i, tile.number(ahead)))
                with cgutils.for_range_slice(builder, whole, inner_, tile.number(1)) as (i, _):
                    turn(i)
            for r in range(rows):
                tile.finish(r, tile.at(y_data, y_first_, builder.mul(row_stride_, tile.number(r))), add=False)
            return context.get_dummy_value()

        return typed, generate

    return cast(Callable[..., None], intrinsic(emit))


def gradient_tile(rows: int, vectors: int) -> Callable[..., None]:
    """A tile of a weight's gradient, `tile(x, offsets, pixel, lines, line_pixels, count, shift, ...)` for kernels.

    The other arguments are `dy, dy_first, dy_stride, dw, dw_first, row_stride`. For r < `rows` and every filter f of
    the tile, the sum over p = pixel + l * line_pixels + i, l < lines, i < count, in this order, of
    x[offsets[p] + shift + r] * dy[dy_first + p * dy_stride + f]
    is added to dw[dw_first + r * row_stride + f].

    All arrays are one-dimensional and contiguous, `x`, `dy` and `dw` of one dtype, `offsets` int64. Nothing is
    checked.
    """

    def emit(  # noqa: PLR0917 - as kernels call it
        typing_context: Any,
        x: Any,
        offsets: Any,
        pixel: Any,
        lines: Any,
        line_pixels: Any,
        count: Any,
        shift: Any,
        dy: Any,
        dy_first: Any,
        dy_stride: Any,
        dw: Any,
        dw_first: Any,
        row_stride: Any,
    ) -> Any:
        index = types.intp
        typed = types.void(x, offsets, *[index] * 5, dy, index, index, dw, index, index)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            tile = _Tile(context, builder, x.dtype, rows, vectors)
            x_data, offsets_data, dy_data, dw_data = (
                _data(context, builder, signature, arguments, i) for i in (0, 1, 7, 10)
            )
            pixel_, lines_, line_pixels_, count_, shift_ = arguments[2:7]
            dy_first_, dy_stride_ = arguments[8:10]
            dw_first_, row_stride_ = arguments[11:]
            x_data = tile.at(x_data, shift_)
            dy_data = tile.at(dy_data, dy_first_)
            tile.start_with_zero()

            def turn(p: Any) -> None:
                pixel = tile.at(x_data, builder.load(tile.at(offsets_data, p)))
                left = [tile.at(pixel, tile.number(r)) for r in range(rows)]
                tile.multiply(left, tile.at(dy_data, builder.mul(p, dy_stride_)))

            whole = builder.mul(builder.sdiv(count_, tile.number(_UNROLLED)), tile.number(_UNROLLED))
            with cgutils.for_range(builder, lines_) as line:
                begin = builder.add(pixel_, builder.mul(line.index, line_pixels_))
                middle, stop = builder.add(begin, whole), builder.add(begin, count_)
                with cgutils.for_range_slice(builder, begin, middle, tile.number(_UNROLLED)) as (p, _):
                    for ahead in range(_UNROLLED):
                        turn(builder.add(p, tile.number(ahead)))
                with cgutils.for_range_slice(builder, middle, stop, tile.number(1)) as (p, _):
                    turn(p)
            for r in range(rows):
                tile.finish(r, tile.at(dw_data, dw_first_, builder.mul(row_stride_, tile.number(r))), add=True)
            return context.get_dummy_value()

        return typed, generate

    return cast(Callable[..., None], intrinsic(emit))
