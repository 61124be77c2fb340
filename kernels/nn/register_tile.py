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

from taihu.kernels.nn.vectors import VECTOR_BYTES, cgutils, ir

_UNROLLED: Final = 4
# Pixels of a window lie as far apart as an image has channels, which the processor does not foresee.
_PIXELS_AHEAD: Final = 4


class _Tile:
    """Writes the instructions of one tile into a kernel."""

    def __init__(self, context: Any, builder: Any, dtype: Any, rows: int, vectors: int) -> None:
        self.builder = builder
        self.rows = rows
        self._vectors = vectors
        self._element_bytes = dtype.bitwidth // 8
        self._lanes = VECTOR_BYTES // self._element_bytes
        self.width = vectors * self._lanes
        self._vector = ir.VectorType(context.get_value_type(dtype), self._lanes)
        self._index = context.get_value_type(types.intp)
        self._sums = [[cgutils.alloca_once(builder, self._vector) for _ in range(vectors)] for _ in range(rows)]

    def at(self, pointer: Any, *offsets: Any) -> Any:
        """The address so many elements further."""
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset])
        return pointer

    def number(self, value: int) -> Any:
        return ir.Constant(self._index, value)

    def _vector_at(self, pointer: Any, number: int) -> Any:
        place = self.builder.gep(pointer, [self.number(number * self._lanes)])
        return self.builder.bitcast(place, self._vector.as_pointer())

    def load(self, pointer: Any) -> list[Any]:
        """`vectors` vectors, one behind another."""
        return [
            self.builder.load(self._vector_at(pointer, v), align=self._element_bytes) for v in range(self._vectors)
        ]

    def start(self, pointer: Any | None = None) -> None:
        """Begin the sums of every row with the vectors at the address, or with zeros."""
        zeros = [ir.Constant(self._vector, None)] * self._vectors
        values = zeros if pointer is None else self.load(pointer)
        for row in self._sums:
            for place, value in zip(row, values, strict=True):
                self.builder.store(value, place)

    def prefetch(self, pointer: Any) -> None:
        """Ask for the cache line of the address, which may be any."""
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
        ask = self.builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, near, data = (ir.Constant(_INT32, each) for each in (0, 3, 1))
        self.builder.call(ask, [self.builder.bitcast(pointer, byte), read, near, data])

    def multiply(self, left: Sequence[Any], right: Any) -> None:
        """Add the outer product of the elements at the addresses `left` and the vectors at the address `right`."""
        builder = self.builder
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

    def unrolled(self, begin: Any, count: Any, turn: Callable[[Any], None]) -> None:
        """Write a loop of `turn(i)` over `count` numbers from `begin` on."""
        builder, step = self.builder, self.number(_UNROLLED)
        middle = builder.add(begin, builder.mul(builder.sdiv(count, step), step))
        with cgutils.for_range_slice(builder, begin, middle, step) as (i, _):
            for ahead in range(_UNROLLED):
                turn(builder.add(i, self.number(ahead)))
        with cgutils.for_range_slice(builder, middle, builder.add(begin, count), self.number(1)) as (i, _):
            turn(i)

    def finish(self, pointer: Any, row_stride: Any, *, add: bool) -> None:
        """Write the sums to the address, rows `row_stride` elements apart, or add them to what is there."""
        for row in range(self.rows):
            self._finish_row(row, self.at(pointer, self.builder.mul(row_stride, self.number(row))), add=add)

    def _finish_row(self, row: int, pointer: Any, *, add: bool) -> None:
        builder = self.builder
        before = self.load(pointer) if add else None
        for v, place in enumerate(self._sums[row]):
            value = builder.load(place)
            if before is not None:
                value = builder.fadd(before[v], value)
            builder.store(value, self._vector_at(pointer, v), align=self._element_bytes)


_INT32 = ir.IntType(32)


def _generator(
    write: Callable[[_Tile, Sequence[Any]], None], dtype: Any, rows: int, vectors: int
) -> Callable[..., Any]:
    """The function that numba calls to write a tile; `write` takes its arguments, for arrays their addresses."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arguments = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]
        write(_Tile(context, builder, dtype, rows, vectors), arguments)
        return context.get_dummy_value()

    return generate


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
        return typed, _generator(_window, x.dtype, rows, vectors)

    return cast(Callable[..., None], intrinsic(emit))


def _window(tile: _Tile, arguments: Sequence[Any]) -> None:
    x, offsets, pixel, shift, lines, line_stride, inner = arguments[:7]
    weight, first, panel_stride, start, y, y_first, row_stride = arguments[7:]
    builder, x = tile.builder, tile.at(x, shift)
    bases = [tile.at(x, builder.load(tile.at(offsets, pixel, tile.number(r)))) for r in range(tile.rows)]
    tile.start(start)
    weight = tile.at(weight, first)
    with cgutils.for_range(builder, lines) as line:
        offset = builder.mul(line.index, line_stride)
        panel = tile.at(weight, builder.mul(line.index, panel_stride))
        starts = [tile.at(base, offset) for base in bases]

        def turn(i: Any) -> None:
            factors = tile.at(panel, builder.mul(i, tile.number(tile.width)))
            tile.multiply([tile.at(s, i) for s in starts], factors)

        tile.unrolled(tile.number(0), inner, turn)
    tile.finish(tile.at(y, y_first), row_stride, add=False)


def gradient_tile(rows: int, vectors: int) -> Callable[..., None]:
    """A tile of a weight's gradient, `tile(x, offsets, pixel, lines, line_pixels, count, shift, ...)` for kernels.

    The other arguments are `dy, dy_first, dy_stride, dw, dw_first, row_stride`. For r < `rows` and every filter f of
    the tile, the sum over p = pixel + l * line_pixels + i, l < lines, i < count, in this order, of
    x[offsets[p] + shift + r] * dy[dy_first + p * dy_stride + f]
    is added to dw[dw_first + r * row_stride + f]. Of `offsets` four more are read than there are pixels.

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
        return typed, _generator(_gradient, x.dtype, rows, vectors)

    return cast(Callable[..., None], intrinsic(emit))


def _gradient(tile: _Tile, arguments: Sequence[Any]) -> None:
    x, offsets, pixel, lines, line_pixels, count, shift = arguments[:7]
    dy, dy_first, dy_stride, dw, dw_first, row_stride = arguments[7:]
    builder, x, dy = tile.builder, tile.at(x, shift), tile.at(dy, dy_first)
    tile.start()

    def turn(p: Any) -> None:
        window = tile.at(x, builder.load(tile.at(offsets, p)))
        tile.prefetch(tile.at(x, builder.load(tile.at(offsets, p, tile.number(_PIXELS_AHEAD)))))
        left = [tile.at(window, tile.number(r)) for r in range(tile.rows)]
        tile.multiply(left, tile.at(dy, builder.mul(p, dy_stride)))

    with cgutils.for_range(builder, lines) as line:
        tile.unrolled(builder.add(pixel, builder.mul(line.index, line_pixels)), count, turn)
    tile.finish(tile.at(dw, dw_first), row_stride, add=True)
