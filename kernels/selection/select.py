"""Selection of the largest entries of a gradient by a threshold (docs/methods.md section 1.1).

A residual holds what was not sent yet, in the unit of gradients. An entry r of it is selected when it is not zero and
`not |r| < threshold`: infinity and NaN always are, so that they reach whoever can report them, and zero never is.

All arrays are contiguous and of shape (n,) unless said otherwise, n < 2**31; values are fp32, `indices` is int32 and
counts from the start of the given range. The kernels release the GIL and allocate less than 20 KiB, whatever n is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.bits import trailing_zeros
from taihu.kernels.base.half import HALF_KINDS, HalfKind, split
from taihu.kernels.base.jit import kernel, kernel_part

Values = NDArray[np.float32]
Indices = NDArray[np.int32]
Codes = NDArray[np.uint16]
Bits = NDArray[np.int32]
Counts = NDArray[np.int64]
Marks = NDArray[np.uint64]

# Without its sign bit, a fp32 as an integer is ordered as its magnitude is, with infinity and then NaN at the end.
_MAGNITUDE = np.int32(0x7FFFFFFF)
_LARGEST = int(_MAGNITUDE)
_BLOCK = 512  # Elements that one loop without branches marks, before the next loop looks at the marks.
_WORD = 64  # Elements whose marks are the bits of one word.
_WITHIN_WORD = np.uint64(_WORD - 1)
# Positions are unsigned in the inner loops: signed ones may count from the end, and the test for that would keep the
# loops from being vectorised.
_DIGITS = 2048  # What the highest 11 bits of a magnitude can be.
_FEW = 1024  # So few entries are counted again for each bit sooner than by digits.
_SAMPLE = 4096  # Entries that tell roughly where the k-th largest lies.


@kernel
def accumulate_select(gradient: Values, residual: Values, threshold: float, indices: Indices, values: Values) -> int:
    """Add `gradient` to `residual` and select from it, in one pass over memory.

    Args:
        gradient: what is added; distinct from `residual` in memory.
        residual: changed in place, everywhere, whatever is selected.
        threshold: the smallest magnitude to select.
        indices: shape (m,), out: the first m selected positions, ascending; what is left of it holds anything then.
        values: shape (m,), out: the entries at these positions, moved there from `residual`, where zeros remain. If
            its shape is (0,), they stay.

    Returns:
        How many entries are selected, which may be more than m.

    Raises:
        ValueError: the arrays differ in length.
    """
    _check_lengths(len(gradient), len(residual))
    _check_room(values, indices)
    lowest = _lowest_bits(threshold)
    marks = np.empty(_BLOCK // _WORD, dtype=np.uint64)
    count = 0
    for start in range(0, len(residual), _BLOCK):
        part = slice(start, min(start + _BLOCK, len(residual)))
        _add(gradient[part], residual[part], lowest, marks)
        before, count = count, _append(marks, part, indices, count)
        _move(residual, indices, values, before, count)
    return count


@kernel
def momentum_select(  # noqa: PLR0917 - four arrays, a selection, four scalars of a rule
    gradient: Values,
    parameters: Values,
    velocity: Values,
    residual: Values,
    threshold: float,
    indices: Indices,
    values: Values,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    scale: float,
) -> int:
    """Add `gradient` with momentum to `residual` and select from it, in one pass over memory.

    This is the momentum correction of Lin et al. 2018, section 3.2:
    `d = scale * gradient + weight_decay * parameters`, `velocity = momentum * velocity + d` and
    `residual += velocity`, or with Nesterov `residual += d + momentum * velocity`. The scalars are rounded to fp32
    once. Arguments, result and errors beyond these are those of `accumulate_select`.
    """
    _check_lengths(len(gradient), len(residual))
    _check_lengths(len(parameters), len(residual))
    _check_lengths(len(velocity), len(residual))
    _check_room(values, indices)
    lowest = _lowest_bits(threshold)
    rule = (np.float32(momentum), np.float32(weight_decay), nesterov, np.float32(scale))
    marks = np.empty(_BLOCK // _WORD, dtype=np.uint64)
    count = 0
    for start in range(0, len(residual), _BLOCK):
        part = slice(start, min(start + _BLOCK, len(residual)))
        _add_with_momentum(gradient[part], parameters[part], velocity[part], residual[part], rule, lowest, marks)
        before, count = count, _append(marks, part, indices, count)
        _move(residual, indices, values, before, count)
    return count


@kernel
def select(residual: Values, threshold: float, indices: Indices) -> int:
    """Select from `residual`, which does not change; arguments and result as of `accumulate_select`."""
    bits = residual.view(np.int32)
    lowest = _lowest_bits(threshold)
    marks = np.empty(_BLOCK // _WORD, dtype=np.uint64)
    count = 0
    for start in range(0, len(bits), _BLOCK):
        part = slice(start, min(start + _BLOCK, len(bits)))
        _mark(bits[part], lowest, _MAGNITUDE, marks)
        count = _append(marks, part, indices, count)
    return count


@kernel
def take(residual: Values, indices: Indices, values: Values) -> None:
    """Move the entries at `indices` (shape (m,)) from `residual`, where zeros remain, to `values` (shape (m,)).

    Raises:
        ValueError: `values` has another length than `indices`.
    """
    _check_lengths(len(values), len(indices))
    _move(residual, indices, values, 0, len(indices))


@kernel
def take_all(residual: Values, first: int, indices: Indices, values: Values) -> None:
    """Name all entries of `residual`, shape (n,), the first of which has position `first` in an arena, and move them.

    Args:
        residual: where zeros remain, unless `values` has the shape (0,).
        first: position of the first entry.
        indices: shape (m,), m at least n, out: their positions.
        values: shape (m,) or (0,), out: the entries.
    """
    for i in range(len(residual)):
        indices[i] = np.int32(first + i)
    if len(values):
        for i in range(len(residual)):
            values[i] = residual[i]
            residual[i] = np.float32(0.0)


@kernel
def put_back(residual: Values, indices: Indices, values: Values) -> None:
    """Undo `take`.

    Raises:
        ValueError: `values` has another length than `indices`.
    """
    _check_lengths(len(values), len(indices))
    for j in range(len(indices)):
        residual[np.uint32(indices[j])] = values[j]


def take_rounded(residual: Values, indices: Indices, codes: Codes, kind: HalfKind) -> None:
    """Move the entries at `indices` (shape (m,)) to `codes` (shape (m,), uint16); `residual` keeps what is lost.

    For a finite entry v, `residual + decoded(code) == v` holds in fp32 afterwards. The code is that of
    `kernels.half.to_half`, except for a few fp16 values from 2**29 on, which could not keep that promise with the
    largest code: they get the one before. Of infinity and NaN nothing remains.

    Raises:
        ValueError: `codes` has another length than `indices`, or `kind` is not `fp16` or `bf16`.
    """
    if kind not in HALF_KINDS:
        raise ValueError(f"16-bit kind {kind!r}: expected fp16 or bf16")
    _take_rounded(residual, indices, codes, kind == "fp16")


@kernel
def clear(array: Values, indices: Indices) -> None:
    """Set `array` to zero at `indices` (shape (m,)): the velocity of what was sent (factor masking)."""
    for j in range(len(indices)):
        array[np.uint32(indices[j])] = np.float32(0.0)


def kth_largest_magnitude(values: Values, k: int) -> float:
    """Exactly the k-th largest |value|, 1 <= k <= n; NaN counts as the largest.

    Raises:
        ValueError: k is not between 1 and n.
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"k = {k} of {len(values)} values: expected 1 to {len(values)}")
    return float(kth_largest(values, k))


@kernel_part
def _add(gradient: Values, residual: Values, lowest: np.int32, marks: Marks) -> None:
    """Add one block, and mark what is selected of it."""
    for word in range(_words(len(residual))):
        mark = np.uint64(0)
        for i in range(word * _WORD, min((word + 1) * _WORD, len(residual))):
            at = np.uint64(i)
            r = np.float32(residual[at] + gradient[at])
            residual[at] = r
            mark |= _bit(at, r.view(np.int32), lowest, _MAGNITUDE)
        marks[word] = mark


@kernel_part
def _add_with_momentum(  # noqa: PLR0917 - four arrays, a rule, a threshold, the marks
    gradient: Values,
    parameters: Values,
    velocity: Values,
    residual: Values,
    rule: tuple[np.float32, np.float32, bool, np.float32],
    lowest: np.int32,
    marks: Marks,
) -> None:
    """Add one block with momentum, and mark what is selected of it."""
    momentum, decay, nesterov, scale = rule
    for word in range(_words(len(residual))):
        mark = np.uint64(0)
        for i in range(word * _WORD, min((word + 1) * _WORD, len(residual))):
            at = np.uint64(i)
            d = gradient[at] * scale + decay * parameters[at]
            v = momentum * velocity[at] + d
            velocity[at] = v
            r = np.float32(residual[at] + (d + momentum * v if nesterov else v))
            residual[at] = r
            mark |= _bit(at, r.view(np.int32), lowest, _MAGNITUDE)
        marks[word] = mark


@kernel_part
def _mark(bits: Bits, least: np.int32, most: np.int32, marks: Marks) -> None:
    """Mark the magnitudes from `least` to `most` in one block."""
    for word in range(_words(len(bits))):
        mark = np.uint64(0)
        for i in range(word * _WORD, min((word + 1) * _WORD, len(bits))):
            at = np.uint64(i)
            mark |= _bit(at, bits[at], least, most)
        marks[word] = mark


@kernel_part
def _words(elements: int) -> int:
    return (elements + _WORD - 1) // _WORD


@kernel_part
def _bit(at: np.uint64, bits: np.int32, least: np.int32, most: np.int32) -> np.uint64:
    """The bit of the element `at` in its word: whether its magnitude lies from `least` to `most`."""
    magnitude = np.int32(bits & _MAGNITUDE)
    return np.uint64((magnitude >= least) & (magnitude <= most)) << np.uint64(at & _WITHIN_WORD)


@kernel_part
def _append(marks: Marks, part: slice[int, int, None], indices: Indices, count: int) -> int:
    """Append the positions that are marked in `part` to `indices[:count]`; the rest of `indices` holds anything then.

    Returns:
        The new count, which exceeds the length of `indices` when they are more.
    """
    for word in range(_words(part.stop - part.start)):
        mark = marks[word]
        first = part.start + word * _WORD
        # Two steps a turn, even where nothing is left: a branch for each entry would be mispredicted too often.
        while count + 2 <= len(indices):
            for _ in range(2):
                indices[np.uint64(count)] = first + trailing_zeros(mark)
                count += mark != 0
                mark &= mark - np.uint64(1)
            if mark == 0:
                break
        while mark:
            if count < len(indices):
                indices[np.uint64(count)] = first + trailing_zeros(mark)
            count += 1
            mark &= mark - np.uint64(1)
    return count


@kernel_part
def _move(residual: Values, indices: Indices, values: Values, start: int, stop: int) -> None:
    """Move the entries at `indices[start:stop]`, as far as there is room for them, from `residual` to `values`."""
    for j in range(start, min(stop, len(values))):
        i = np.uint32(indices[j])
        values[np.uint64(j)] = residual[i]
        residual[i] = np.float32(0.0)


@kernel_part
def _lowest_bits(threshold: float) -> np.int32:
    """The bits of the smallest fp32 magnitude that is selected."""
    rounded = np.float32(threshold)
    bits = rounded.view(np.int32)
    if rounded < threshold:
        bits = np.int32(bits + np.int32(1))
    return bits if threshold > 0 else np.int32(1)


@kernel_part
def _check_lengths(seen: int, expected: int) -> None:
    if seen != expected:
        raise ValueError("selection: arrays of different lengths; expected as many entries in each")


@kernel_part
def _check_room(values: Values, indices: Indices) -> None:
    if len(values):
        _check_lengths(len(values), len(indices))


@kernel
def _take_rounded(residual: Values, indices: Indices, codes: Codes, fp16: bool) -> None:
    _check_lengths(len(codes), len(indices))
    buffer = np.empty(_BLOCK, dtype=np.float32)
    # Gathering, rounding and scattering in turn: all in one, an element's many instructions would keep the processor
    # from fetching the next ones.
    for start in range(0, len(indices), _BLOCK):
        chosen = indices[start : start + _BLOCK]
        values = buffer[: len(chosen)]
        take(residual, chosen, values)
        split(values, codes[start : start + _BLOCK], fp16)
        for j in range(len(chosen)):
            residual[np.uint32(chosen[j])] = values[j]


@kernel
def kth_largest(values: Values, k: int) -> np.float32:
    """The k-th largest |value| for kernels, which know that 1 <= k <= n; NaN counts as the largest."""
    bits = values.view(np.int32)
    if len(bits) <= _FEW:
        return _kth_largest_of_few(bits, k)
    return _kth_largest_of_many(bits, k)


@kernel_part
def _kth_largest_of_few(bits: Bits, k: int) -> np.float32:
    """One bit after another, the highest first: it is set where k entries are as large still."""
    found = np.int32(0)
    for bit in range(30, -1, -1):
        candidate = np.int32(found | np.int32(1 << bit))
        as_large = 0
        for i in range(len(bits)):
            as_large += int(np.int32(bits[np.uint64(i)] & _MAGNITUDE) >= candidate)
        if as_large >= k:
            found = candidate
    return np.int32(found).view(np.float32)


@kernel_part
def _kth_largest_of_many(bits: Bits, k: int) -> np.float32:
    """Radix selection from the highest digit on: each pass counts the entries that share the digits found so far."""
    counts = np.zeros(_DIGITS, dtype=np.int64)
    hits = np.empty(_BLOCK, dtype=np.int32)
    step = max(1, len(bits) // _SAMPLE) | 1
    for i in range(0, len(bits), step):
        counts[(bits[i] & _MAGNITUDE) >> 20] += 1
    # Nearly all entries are too small to matter. Should the sample mislead, the first pass is made again with all.
    expected = k / step
    digit, _ = _walk(counts, int(expected + 4 * np.sqrt(expected)) + 4)
    least = max(digit, 0) << 20
    digit, rank = _count(bits, least, _LARGEST, 20, k, counts, hits)
    if digit < 0:
        least = 0
        digit, rank = _count(bits, least, _LARGEST, 20, k, counts, hits)
    least += digit << 20
    for shift, above in ((10, 20), (0, 10)):
        digit, rank = _count(bits, least, least + (1 << above) - 1, shift, rank, counts, hits)
        least += digit << shift
    return np.int32(least).view(np.float32)


@kernel_part
def _count(  # noqa: PLR0917 - a range of magnitudes, a rank, two scratch arrays
    bits: Bits, least: int, most: int, shift: int, rank: int, counts: Counts, hits: Indices
) -> tuple[int, int]:
    """The `rank`-th largest magnitude from `least` to `most`: its digit at `shift` above `least`, its rank there."""
    counts[:] = 0
    marks = np.empty(_BLOCK // _WORD, dtype=np.uint64)
    for start in range(0, len(bits), _BLOCK):
        block = bits[start : start + _BLOCK]
        _mark(block, np.int32(least), np.int32(most), marks)
        for j in range(_append(marks, slice(0, len(block)), hits, 0)):
            counts[((block[np.uint32(hits[j])] & _MAGNITUDE) - least) >> shift] += 1
    return _walk(counts, rank)


@kernel_part
def _walk(counts: Counts, rank: int) -> tuple[int, int]:
    """The digit of the `rank`-th largest entry, -1 when there are fewer, and its rank among those of this digit."""
    digit = len(counts) - 1
    while digit >= 0 and counts[digit] < rank:
        rank -= counts[digit]
        digit -= 1
    return digit, rank
