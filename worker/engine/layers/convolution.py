"""Two-dimensional convolution."""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import TensorSpec
from taihu.kernels.nn.batch_norm import blocked_column_sums, fold, row_blocks
from taihu.kernels.nn.blocks import Blocks, Phase, Result, Source, phases_of, result_of, source_of, window_offsets
from taihu.kernels.nn.convolution import convolve
from taihu.kernels.nn.elementwise import add_bias
from taihu.kernels.nn.filters import TILE_ROWS, Filters, pack_mirrored_weight, pack_weight, padded_filters, tiles_of
from taihu.kernels.nn.weight_gradient import packed_elements, weight_gradient
from taihu.kernels.nn.window import Window
from taihu.worker.engine.base.layer import Array, ParameterLayer, Run, Shape, check_initial, fill_normal, shape_error
from taihu.worker.engine.layers.products import even_side, multiply, multiply_rows

# A block of padded images stays in the second-level cache, beside a tile of the weight.
_BLOCK_BYTES: Final = 1 << 17
# A block reads the whole weight once: the larger that is, the more images share it.
_WEIGHT_SHARE: Final = 4
# So much of several images may lie in the third-level cache for the sake of fewer products.
_TOGETHER_BYTES: Final = 3 << 19
# Weights of one pixel from which on packing pixels for BLAS costs less than rows of tiles that compete for the cache.
_PRODUCT_FROM: Final = 1 << 14
# Sums of a weight's gradient are read and written once for so many pixels.
_GRADIENT_PIXELS: Final = 256


class Conv2d(ParameterLayer):
    """Cross-correlation of NHWC images with `filters` square kernels; weight (size, size, C / groups, filters).

    Args:
        filters: number of output channels.
        kernel: height and width of a kernel.
        stride: distance of two windows.
        padding: width of the border of zeros; "same" keeps ceil(input / stride) positions, for odd kernels.
        bias: whether every filter has a bias.
        groups: cut input and output channels into this many independent convolutions.
        gain: the initial weights have the variance gain / inputs: 2 before a rectifier (He et al. 2015, section 2.2).
        deviation: of the initial weights, in place of what the gain gives.
        bias_value: of the initial biases.
    """

    output_is_free = True
    gradient_is_free = True

    def __init__(
        self,
        filters: int,
        kernel: int,
        stride: int = 1,
        padding: int | Literal["same"] = 0,
        *,
        bias: bool = True,
        groups: int = 1,
        gain: float = 2.0,
        deviation: float | None = None,
        bias_value: float = 0.0,
    ) -> None:
        super().__init__()
        border = 0 if padding == "same" else padding
        if min(filters, kernel, stride, groups) < 1 or border < 0 or filters % groups:
            raise ModelError(
                "Conv2d: expected positive filters, kernel and stride, padding of at least 0 and groups that divide "
                f"the filters, seen filters={filters}, kernel={kernel}, stride={stride}, padding={padding}, "
                f"groups={groups}"
            )
        if padding == "same" and kernel % 2 == 0:
            raise ModelError(
                f'Conv2d: padding="same" needs an odd kernel, seen {kernel}; give the padding as a number'
            )
        self._padding = (kernel - 1) // 2 if padding == "same" else padding
        self._filters, self._kernel, self._stride = filters, kernel, stride
        self._bias, self._groups = bias, groups
        check_initial("Conv2d", gain, deviation)
        self._gain, self._deviation, self._bias_value = gain, deviation, bias_value
        self._window = Window(kernel, stride, self._padding)
        self._input = np.empty(0)
        self._output_shape: Shape = ()
        self._image: tuple[int, int] = (0, 0)
        self._channels = 0
        self._offsets: dict[tuple[Source, Blocks], Array] = {}
        self._phases: dict[int, tuple[Phase, ...]] = {}

    @property
    def kind(self) -> str:
        """`conv`."""
        return "conv"

    @property
    def window(self) -> Window:
        """Size, stride and padding."""
        return self._window

    @property
    def groups(self) -> int:
        """Independent convolutions."""
        return self._groups

    @property
    def padded_elements(self) -> int:
        """Values of one input with its border of zeros; set by `build`."""
        height, width = (side + 2 * self._padding for side in self._image)
        return height * width * self._channels * self._groups

    def build(self, name: str, input_shape: Shape) -> Shape:
        """(H, W, C) -> (OH, OW, filters)."""
        self.name = name
        if len(input_shape) != 3:
            raise shape_error(name, "(height, width, channels)", input_shape, "a convolution comes before Flatten")
        height, width, channels = input_shape
        size, stride, padding = self._window
        least = size - 2 * padding
        if min(height, width) < least:
            expected = f"at least {least} x {least} pixels for a {size} x {size} kernel"
            raise shape_error(name, expected, input_shape, "use a smaller kernel or stride, or more padding")
        if channels % self._groups:
            expected = f"channels divisible by groups={self._groups}"
            raise shape_error(name, expected, input_shape, "change groups or the filters of the layer before")
        weight = TensorSpec("weight", (size, size, channels // self._groups, self._filters))
        bias = (TensorSpec("bias", (self._filters,)),) if self._bias else ()
        self.tensors = (weight, *bias)
        self._image, self._channels = (height, width), channels // self._groups
        positions = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        self._output_shape = (*positions, self._filters)
        self._phases.clear()
        return self._output_shape

    def fill(self, generator: np.random.Generator) -> None:
        """Normal weights of the variance gain / inputs, or of the deviation that was given; constant biases."""
        weight = self.parameters["weight"]
        usual = math.sqrt(self._gain / math.prod(weight.shape[:3]))
        fill_normal(weight, generator, usual if self._deviation is None else self._deviation)
        if self._bias:
            self.parameters["bias"][...] = self._bias_value

    def compute(self, x: Array, run: Run) -> Array:
        """Convolve every group."""
        self._input = x = self._read(x)
        y = self.workspace.take("output", (len(x), *self._output_shape), x.dtype)
        if self._is_product:
            rows = _pixels(x)
            multiply_rows(run.team, rows, self.parameters["weight"][0, 0], _pixels(y), even_side(len(rows)))
            if self._bias:
                add_bias(_pixels(y), self.parameters["bias"])
            return y
        for group in range(self._groups):
            source = self._source(group)
            filters = self._filters_of(group)
            weight = self.parameters["weight"].reshape(-1, self._filters)
            packed = run.scratch.take("packed", (len(weight) * padded_filters(filters.number, x.dtype),), x.dtype)
            run.team.run(pack_weight, tiles_of(filters.number, x.dtype), weight, filters, packed)
            start = run.scratch.take("start", (padded_filters(filters.number, x.dtype),), x.dtype)
            start[:] = 0
            if self._bias:
                start[: filters.number] = self.parameters["bias"][filters.first : filters.first + filters.number]
            self._convolve(x, source, packed, start, y, result_of(source, filters), run)
        return y

    def _read(self, x: Array) -> Array:
        """The pixels of `x` that are read: of a kernel of one pixel every stride-th line and column alone."""
        if self._strides_over == 1:
            return x
        thin = x[:, :: self._strides_over, :: self._strides_over]
        return self.workspace.copy("input", thin)

    @property
    def _is_product(self) -> bool:
        """Whether pixels are multiplied by a matrix: BLAS does so."""
        size, _, padding = self._window
        weights = self._channels * self._filters
        return size == 1 and not padding and self._groups == 1 and weights >= _PRODUCT_FROM

    @property
    def _strides_over(self) -> int:
        size, stride, padding = self._window
        return stride if size == 1 and not padding else 1

    def _source(self, group: int) -> Source:
        """The windows of what `_read` returns."""
        size, stride, padding = self._window
        image = self._output_shape[:2] if self._strides_over > 1 else self._image
        window = Window(size, stride // self._strides_over, padding)
        return source_of(window, (image[0], image[1]), group * self._channels, self._channels)

    def differentiate(self, dy: Array, run: Run) -> Array:
        """The bias' gradient, and of every group those of the weight and of the input."""
        x = self._input
        if self._bias:
            rows = dy.reshape(-1, self._filters)
            totals = run.scratch.take("totals", (row_blocks(rows), 1, self._filters), np.float64)
            run.team.run(blocked_column_sums, len(totals), rows, totals)
            fold(totals)
            self.gradients["bias"][...] = totals[0, 0]
        dx = x[:0]
        if self.needs_input_gradient:
            shape = (len(x), *self._image, self._groups * self._channels)
            dx = self.workspace.take("input_gradient", shape, x.dtype)
        if self._window.stride > self._window.size:
            # Pixels between the windows.
            dx[...] = 0
        if self._is_product:
            self._differentiate_product(dy, dx, run)
            return dx
        for group in range(self._groups):
            self._differentiate_weight(group, dy, run)
            if self.needs_input_gradient:
                self._differentiate_input(group, dy, dx, run)
        return dx

    def _differentiate_product(self, dy: Array, dx: Array, run: Run) -> None:
        x, slopes = self._input, _pixels(dy)
        product = multiply if self._filters > self._channels else multiply_rows
        side = even_side(max(self._filters, self._channels))
        product(run.team, _pixels(x).T, slopes, self.gradients["weight"][0, 0], side)
        if not self.needs_input_gradient:
            return
        step = self._strides_over
        read = dx if step == 1 else run.scratch.take("product", x.shape, x.dtype)
        side = even_side(len(slopes))
        multiply_rows(run.team, slopes, self.parameters["weight"][0, 0].T, _pixels(read), side)
        if step > 1:
            dx[:, ::step, ::step] = read

    def _differentiate_weight(self, group: int, dy: Array, run: Run) -> None:
        x, filters = self._input, self._filters_of(group)
        source = self._source(group)
        size, inner = self._window.size, self._window.size * self._channels
        columns = padded_filters(filters.number, x.dtype)
        tiles = -(-inner // TILE_ROWS)
        gradient = self.gradients["weight"].reshape(size, inner, self._filters)
        direct = tiles * TILE_ROWS == inner and columns == self._filters
        dw = gradient if direct else run.scratch.take("weight_gradient", (size, tiles * TILE_ROWS, columns), x.dtype)
        blocks = self._gradient_blocks(x, source, plain=tiles * TILE_ROWS == inner)
        pixels = blocks.images * blocks.rows * source.columns
        elements = pixels * columns + packed_elements(source, filters.number, x.itemsize, pixels)
        if not blocks.plain:
            elements += blocks.images * source.strip_elements(blocks.rows) + TILE_ROWS
        last = blocks._replace(images=len(x) % blocks.images or blocks.images)
        offsets = self._offsets_of(source, blocks), self._offsets_of(source, last)
        scratch = run.scratch.take("padded", (run.team.threads, elements), x.dtype)
        run.team.run(
            weight_gradient,
            size * tiles,
            *(x, source, *offsets, dy.reshape(-1), filters, dw.reshape(-1), dw.shape[-1], blocks, scratch),
        )
        if not direct:
            gradient[:, :, filters.first : filters.first + filters.number] = dw[:, :inner, : filters.number]

    def _differentiate_input(self, group: int, dy: Array, dx: Array, run: Run) -> None:
        filters = self._filters_of(group)
        weight = self.parameters["weight"].reshape(-1, self._channels, self._filters)
        start = run.scratch.take("start", (padded_filters(self._channels, dy.dtype),), dy.dtype)
        start[:] = 0
        for source, result, taps in self._phases_of(group):
            packed = run.scratch.take(
                "packed", (len(taps) * filters.number * padded_filters(self._channels, dy.dtype),), dy.dtype
            )
            run.team.run(pack_mirrored_weight, tiles_of(self._channels, dy.dtype), weight, taps, filters, packed)
            self._convolve(dy, source, packed, start, dx, result, run)

    def _convolve(  # noqa: PLR0917 - a product of arrays and what they mean
        self, x: Array, source: Source, packed: Array, start: Array, y: Array, result: Result, run: Run
    ) -> None:
        blocks = self._blocks(x, source, packed.nbytes, run.team.threads)
        elements = TILE_ROWS * 2 * padded_filters(1, x.dtype)
        if not blocks.plain:
            elements += blocks.images * source.strip_elements(blocks.rows)
        scratch = run.scratch.take("padded", (run.team.threads, elements), x.dtype)
        places, flat, count = self._offsets_of(source, blocks), y.reshape(-1), blocks.in_batch(len(x), source)
        if count >= run.team.threads:
            run.team.run(convolve, count, x, source, places, packed, start, flat, result, blocks, scratch)
            return
        depth, width = source.lines * source.size * source.channels, 2 * padded_filters(1, x.dtype)

        def some_filters(first: int, last: int, lane: int) -> None:
            begin, end = first * width, min(last * width, result.number)
            own = result._replace(first=result.first + begin, number=end - begin)
            weight = packed[begin * depth :]
            convolve(x, source, places, weight, start[begin:], flat, own, blocks, scratch, 0, count, lane)

        # Too few blocks for the threads, as where small images go together: each takes all of them, and some filters.
        run.team.run(some_filters, tiles_of(result.number, x.dtype))

    def _blocks(self, x: Array, source: Source, weight_bytes: int, threads: int) -> Blocks:
        """Whole images while they fit, for every thread some."""
        room = max(_BLOCK_BYTES, weight_bytes // _WEIGHT_SHARE) // x.itemsize
        rows = source.rows
        while rows > 1 and source.strip_elements(rows) > room:
            rows = -(-rows // 2)
        images = max(1, min(room // source.strip_elements(rows), -(-len(x) // threads)))
        together = self._may_go_together(x, source)
        if together:
            images, rows = max(1, images // TILE_ROWS) * TILE_ROWS, source.rows
        elif rows < source.rows:
            images = 1
        return Blocks(images, rows, source.is_plain(x.shape, images, rows), together)

    def _may_go_together(self, x: Array, source: Source) -> bool:
        """Whether whole tiles of images fit; by shapes alone, as it decides which products are made."""
        elements = TILE_ROWS * source.strip_elements(source.rows)
        return len(x) % TILE_ROWS == 0 and elements * x.itemsize <= _TOGETHER_BYTES

    def _gradient_blocks(self, x: Array, source: Source, *, plain: bool) -> Blocks:
        """Decides in which order is summed: by shapes alone, not by the number of threads."""
        rows = min(source.rows, -(-_GRADIENT_PIXELS // source.columns))
        whole = rows == source.rows
        images = min(len(x), -(-_GRADIENT_PIXELS // source.pixels)) if whole else 1
        return Blocks(images, rows, plain and source.is_plain(x.shape, images, rows), together=True)

    def _phases_of(self, group: int) -> tuple[Phase, ...]:
        if group not in self._phases:
            channels = Filters(group * self._channels, self._channels, self._groups * self._channels)
            self._phases[group] = phases_of(self._window, self._image, self._filters_of(group), channels)
        return self._phases[group]

    def _offsets_of(self, source: Source, blocks: Blocks) -> Array:
        key = (source, blocks)
        if key not in self._offsets:
            self._offsets[key] = window_offsets(source, blocks)
        return self._offsets[key]

    def _filters_of(self, group: int) -> Filters:
        count = self._filters // self._groups
        return Filters(group * count, count, self._filters)


def _pixels(images: Array) -> Array:
    """(B, H, W, C) as rows of channels."""
    return images.reshape(-1, images.shape[-1])
