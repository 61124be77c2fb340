"""The convolution kernels against sums over windows in float64."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.nn.blocks import Blocks, Source, phases_of, result_of, source_of, window_offsets
from taihu.kernels.nn.convolution import convolve
from taihu.kernels.nn.filters import TILE_ROWS, Filters, pack_mirrored_weight, pack_weight, padded_filters, tiles_of
from taihu.kernels.nn.weight_gradient import packed_elements, weight_gradient
from taihu.kernels.nn.window import Window

_DTYPES = st.sampled_from([np.float32, np.float64])


@dataclass
class Case:
    """A convolution of some channels of images to some filters of a result, and how its work is divided."""

    x: NDArray[Any]
    weight: NDArray[Any]
    dy: NDArray[Any]
    bias: NDArray[Any]
    window: Window
    first_channel: int
    filters: Filters
    images: int
    rows: int
    together: bool
    parts: int

    @property
    def slices(self) -> tuple[slice, slice]:
        first = self.first_channel
        return slice(first, first + self.weight.shape[2]), slice(
            self.filters.first, self.filters.first + self.filters.number
        )

    def blocks(self, source: Source, x: NDArray[Any], *, may_be_plain: bool = True) -> Blocks:
        """Some rows of an image, or some images; as they are where that is possible."""
        whole = self.rows >= source.rows
        images, rows = (self.images, source.rows) if whole else (1, self.rows)
        plain = may_be_plain and source.is_plain(x.shape, images, rows)
        return Blocks(images, rows, plain, self.together and whole)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """The values are small integers: all sums are exact, whatever their order."""
    dtype = draw(_DTYPES)
    size, stride = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    window = Window(size, stride, draw(st.integers(0, size + 1)))
    least = max(1, size - 2 * window.padding)
    batch, channels, count = draw(st.integers(1, 11)), draw(st.integers(1, 35)), draw(st.integers(1, 70))
    height, width = draw(st.integers(least, least + 7)), draw(st.integers(least, least + 7))
    before, behind, first, rest = (draw(st.integers(0, 3)) for _ in range(4))
    generator = np.random.default_rng(draw(st.integers(0, 99)))

    def integers(*shape: int) -> NDArray[Any]:
        return generator.integers(-3, 4, shape).astype(dtype)

    filters = Filters(first, count, first + count + rest)
    source = source_of(window, (height, width), 0, channels)
    positions = (source.rows, source.columns)
    x = integers(batch, height, width, before + channels + behind)
    return Case(
        x=x,
        weight=integers(size, size, channels, filters.stride),
        dy=integers(batch, *positions, filters.stride),
        bias=integers(count),
        window=window,
        first_channel=before,
        filters=filters,
        images=draw(st.integers(1, batch)),
        rows=draw(st.integers(1, 12)),
        together=draw(st.booleans()),
        parts=draw(st.integers(1, 3)),
    )


def _windows(case: Case) -> NDArray[np.float64]:
    """(B, OH, OW, size, size, channels) of the padded image."""
    size, stride, padding = case.window
    border = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded = np.pad(case.x[..., case.slices[0]].astype(np.float64), border)
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))
    return views[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def _in_parts(case: Case, call: Any, parts: int, *arguments: Any) -> None:
    """As a team calls it, with a part of the scratch for each range."""
    for lane in range(case.parts):
        call(*arguments, lane * parts // case.parts, (lane + 1) * parts // case.parts, lane)


def _scratch(case: Case, elements: int) -> NDArray[Any]:
    return np.full((case.parts, elements), np.nan, case.x.dtype)


def _convolution_scratch(case: Case, source: Source, blocks: Blocks) -> NDArray[Any]:
    padded = 0 if blocks.plain else blocks.images * source.strip_elements(blocks.rows)
    return _scratch(case, 2 * TILE_ROWS * padded_filters(1, case.x.dtype) + padded)


def _weight_gradient(case: Case, x: NDArray[Any], dy: NDArray[Any]) -> NDArray[Any]:
    source = source_of(case.window, x.shape[1:3], case.first_channel, case.weight.shape[2])
    size, inner = case.window.size, case.window.size * case.weight.shape[2]
    rows, columns = -(-inner // TILE_ROWS) * TILE_ROWS, padded_filters(case.filters.number, x.dtype)
    dw = np.full((size, rows, columns), np.nan, x.dtype)
    blocks = case.blocks(source, x, may_be_plain=rows == inner)._replace(together=True)
    padded = 0 if blocks.plain else blocks.images * source.strip_elements(blocks.rows) + TILE_ROWS
    pixels = blocks.images * blocks.rows * source.columns
    scratch = _scratch(
        case, pixels * columns + packed_elements(source, case.filters.number, x.itemsize, pixels) + padded
    )
    offsets = window_offsets(source, blocks)
    last = window_offsets(source, blocks._replace(images=len(x) % blocks.images or blocks.images))
    _in_parts(
        case, weight_gradient, size * rows // TILE_ROWS, x, source, offsets, last, dy.reshape(-1),
        case.filters, dw.reshape(-1), columns, blocks, scratch,
    )  # fmt: skip
    return dw[:, :inner, : case.filters.number]


@settings(deadline=None, max_examples=60)
@given(_cases())
def test_a_convolution_is_a_sum_over_windows(case: Case) -> None:
    dtype = case.x.dtype
    expected = np.full(case.dy.shape, 7.0)
    expected[..., case.slices[1]] = case.bias + np.einsum(
        "bhwijc,ijcf->bhwf", _windows(case), case.weight[..., case.slices[1]].astype(np.float64)
    )
    source = source_of(case.window, case.x.shape[1:3], case.first_channel, case.weight.shape[2])
    matrix = case.weight.reshape(-1, case.filters.stride)
    columns = padded_filters(case.filters.number, dtype)
    packed, start = np.full(len(matrix) * columns, np.nan, dtype), np.zeros(columns, dtype)
    start[: case.filters.number] = case.bias
    _in_parts(case, pack_weight, tiles_of(case.filters.number, dtype), matrix, case.filters, packed)
    y = np.full(case.dy.size, 7, dtype)
    blocks = case.blocks(source, case.x)
    scratch = _convolution_scratch(case, source, blocks)
    _in_parts(
        case, convolve, blocks.in_batch(len(case.x), source), case.x, source, window_offsets(source, blocks), packed,
        start, y, result_of(source, case.filters), blocks, scratch,
    )  # fmt: skip
    assert np.array_equal(y.reshape(expected.shape), expected)


@settings(deadline=None, max_examples=60)
@given(_cases())
def test_the_gradient_of_the_input_goes_back_through_every_window(case: Case) -> None:
    dtype = case.x.dtype
    size, stride, padding = case.window
    batch, height, width, all_channels = case.x.shape
    channels = case.weight.shape[2]
    padded = np.zeros((batch, height + 2 * padding, width + 2 * padding, channels))
    back = np.einsum(
        "bhwf,ijcf->bhwijc", case.dy[..., case.slices[1]].astype(np.float64), case.weight[..., case.slices[1]]
    )
    for oh, ow, i, j in np.ndindex(*case.dy.shape[1:3], size, size):
        padded[:, oh * stride + i, ow * stride + j] += back[:, oh, ow, i, j]
    expected = np.full(case.x.shape, 7.0)
    expected[..., case.slices[0]] = padded[:, padding : padding + height, padding : padding + width]

    channels_of = Filters(case.first_channel, channels, all_channels)
    columns = padded_filters(channels, dtype)
    weight, start = case.weight.reshape(size**2, channels, -1), np.zeros(columns, dtype)
    dx = np.full(case.x.shape, 7, dtype)
    # Pixels that a kernel skips are in no phase.
    dx[..., case.slices[0]] = 0 if stride > size else 7
    for source, result, taps in phases_of(case.window, (height, width), case.filters, channels_of):
        packed = np.full(len(taps) * case.filters.number * columns, np.nan, dtype)
        _in_parts(case, pack_mirrored_weight, tiles_of(channels, dtype), weight, taps, case.filters, packed)
        blocks = case.blocks(source, case.dy)
        scratch = _convolution_scratch(case, source, blocks)
        number, offsets = blocks.in_batch(batch, source), window_offsets(source, blocks)
        _in_parts(
            case, convolve, number, case.dy, source, offsets, packed, start, dx.reshape(-1), result, blocks, scratch
        )
    assert np.array_equal(dx, expected)


@settings(deadline=None, max_examples=60)
@given(_cases())
def test_the_gradient_of_the_weight_sums_over_all_windows(case: Case) -> None:
    expected = np.einsum("bhwijc,bhwf->ijcf", _windows(case), case.dy[..., case.slices[1]].astype(np.float64))
    assert np.array_equal(_weight_gradient(case, case.x, case.dy).reshape(expected.shape), expected)


@settings(deadline=None, max_examples=20)
@given(_cases(), st.integers(1, 5))
def test_a_weight_gradient_does_not_depend_on_how_its_work_is_divided(case: Case, parts: int) -> None:
    generator = np.random.default_rng(0)
    x, dy = (generator.standard_normal(a.shape).astype(a.dtype) for a in (case.x, case.dy))
    seen = []
    for number in (1, parts):
        case.parts = number
        seen.append(_weight_gradient(case, x, dy).tobytes())
    assert seen[0] == seen[1]


def test_an_image_that_is_cropped_on_one_side_and_padded_on_the_other_is_not_read_as_it_is() -> None:
    """With a padding of 1 the last column is met by the first tap of a window that does not exist."""
    window, gradient = Window(3, 3, 1), (3, 3)
    phases = phases_of(window, (9, 9), Filters(0, 1, 1), Filters(0, 1, 1))
    shifted = [phase.source for phase in phases if phase.source.above or phase.source.before]
    assert any(
        (source.padded_height, source.padded_width) == gradient and min(source.above, source.before) < 0
        for source in shifted
    )
    assert not any(source.is_plain((1, *gradient, 1), 1, source.rows) for source in shifted)
