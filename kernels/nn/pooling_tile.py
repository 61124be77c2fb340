"""Maximum pooling of one vector of channels of one window, in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from numba import types
from numba.extending import intrinsic

from taihu.kernels.nn.vectors import VECTOR_BYTES, cgutils, ir

_INT32: Final = ir.IntType(32)


class _Taps:
    """Writes a loop over a window's part inside of the image."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        dtype = signature.args[0].dtype
        self.bytes = dtype.bitwidth // 8
        lanes = VECTOR_BYTES // self.bytes
        self.vector = ir.VectorType(context.get_value_type(dtype), lanes)
        self.positions = ir.VectorType(_INT32, lanes)
        self._data = [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in range(3)]
        self._lanes = ir.VectorType(_INT32, lanes)
        (self.first, self._line, self._pixel, self._rows, self._columns, self.position, self._size, self.out) = (
            arguments[3:]
        )

    def place(self, array: int, offset: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(self._data[array], [offset]), kind.as_pointer())

    def spread(self, number: Any) -> Any:
        """An int32 in every lane."""
        undefined = ir.Constant(self.positions, ir.Undefined)
        lane = self.builder.insert_element(undefined, self.builder.trunc(number, _INT32), ir.Constant(_INT32, 0))
        return self.builder.shuffle_vector(lane, undefined, ir.Constant(self._lanes, None))

    def each(self, body: Callable[[Any, Any], None]) -> None:
        """Write `body(offset of the tap's pixel, its position in every lane)`."""
        builder = self.builder
        with cgutils.for_range(builder, self._rows) as row:
            line = builder.add(self.first, builder.mul(row.index, self._line))
            position = builder.add(self.position, builder.mul(row.index, self._size))
            with cgutils.for_range(builder, self._columns) as column:
                offset = builder.add(line, builder.mul(column.index, self._pixel))
                body(offset, self.spread(builder.add(position, column.index)))


def _tile(write: Callable[[_Taps], None]) -> Callable[..., None]:
    """`tile(image, result, chosen, first, line, pixel, rows, columns, position, size, out)` for kernels.

    The taps are `rows` x `columns` pixels of `image` from the element `first` on, `line` and `pixel` elements apart;
    the first one has the number `position` in its window of `size` x `size`. The vectors of `result` and `chosen`
    (int32) begin at `out`.
    """

    def emit(  # noqa: PLR0917 - as kernels call it
        typing_context: Any,
        image: Any,
        result: Any,
        chosen: Any,
        first: Any,
        line: Any,
        pixel: Any,
        rows: Any,
        columns: Any,
        position: Any,
        size: Any,
        out: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write(_Taps(context, builder, signature, arguments))
            return context.get_dummy_value()

        return types.void(image, result, chosen, *[types.intp] * 8), generate

    return cast(Callable[..., None], intrinsic(emit))


def _max(taps: _Taps) -> None:
    builder = taps.builder
    best, where = (cgutils.alloca_once(builder, kind) for kind in (taps.vector, taps.positions))
    builder.store(builder.load(taps.place(0, taps.first, taps.vector), align=taps.bytes), best)
    builder.store(taps.spread(taps.position), where)

    def tap(offset: Any, position: Any) -> None:
        value = builder.load(taps.place(0, offset, taps.vector), align=taps.bytes)
        # Ordered greater, or the value is NaN.
        wins = builder.or_(
            builder.fcmp_ordered(">", value, builder.load(best)), builder.fcmp_unordered("uno", value, value)
        )
        builder.store(builder.select(wins, value, builder.load(best)), best)
        builder.store(builder.select(wins, position, builder.load(where)), where)

    taps.each(tap)
    builder.store(builder.load(best), taps.place(1, taps.out, taps.vector), align=taps.bytes)
    builder.store(builder.load(where), taps.place(2, taps.out, taps.positions), align=4)


def _max_gradient(taps: _Taps) -> None:
    builder = taps.builder
    gradient = builder.load(taps.place(1, taps.out, taps.vector), align=taps.bytes)
    where = builder.load(taps.place(2, taps.out, taps.positions), align=4)

    def tap(offset: Any, position: Any) -> None:
        target = taps.place(0, offset, taps.vector)
        part = builder.select(builder.icmp_signed("==", where, position), gradient, ir.Constant(taps.vector, None))
        builder.store(builder.fadd(builder.load(target, align=taps.bytes), part), target, align=taps.bytes)

    taps.each(tap)


# Writes the maximum of the taps and the number of the first of equal ones; NaN wins over all.
max_tile = _tile(_max)
# Adds `result`, the gradient, to the tap of `image` that was chosen.
max_gradient_tile = _tile(_max_gradient)
