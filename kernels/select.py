"""Selection of the largest entries of a gradient by a threshold (methods section 1.1).

A residual holds what was not sent yet, in the unit of gradients. An entry r of it is selected when it is not zero and
`not |r| < threshold`: infinity and NaN always are, so that they reach whoever can report them, and zero never is.

All arrays are contiguous and of shape (n,) unless said otherwise, n < 2**31; values are fp32, `indices` is int32 and
counts from the start of the given range. The kernels release the GIL and allocate nothing, unless said otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.bits import trailing_zeros
from kernels.half import HALF_KINDS, HalfKind, split
from kernels.jit import kernel

__all__ = [
    "accumulate_select",
    "clear",
    "kth_largest_magnitude",
    "momentum_select",
    "select",
    "take",
    "take_rounded",
    "warm_up",
]

Values = NDArray[np.float32]
Indices = NDArray[np.int32]
Codes = NDArray[np.uint16]
Bits = NDArray[np.int32]
Counts = NDArray[np.int64]

# Without its sign bit, a fp32 as an integer is ordered as its magnitude is, with infinity and then NaN at the end.
_MAGNITUDE = np.int32(0x7FFFFFFF)
_LARGEST = int(_MAGNITUDE)
_CACHED = 512  # Elements that stay in the L1 cache between two loops over them.
_LANES = 64  # The bits of a word: one for each element that is tested at once.
_DIGITS = 2048  # What the highest 11 bits of a magnitude can be.
_SAMPLE = 4096  # Entries that tell roughly where the k-th largest lies.


@kernel
def accumulate_select(gradient: Values, residual: Values, threshold: float, indices: Indices) -> int:
    """Add `gradient` to `residual` and select from it, in one pass over memory.

    Args:
        gradient: what is added; distinct from `residual` in memory.
        residual: changed in place, everywhere, whatever is selected.
        threshold: the smallest magnitude to select.
        indices: shape (m,), out: the first m selected positions, ascending.

    Returns:
        How many entries are selected, which may be more than m.

    Raises:
        ValueError: the arrays differ in length.
    """
    _check_lengths(len(gradient), len(residual))
    bits = residual.view(np.int32)
    lowest = _lowest_bits(threshold)
    count = 0
    for start in range(0, len(residual), _CACHED):
        stop = min(start + _CACHED, len(residual))
        _add(gradient[start:stop], residual[start:stop])
        count = _scan(bits[start:stop], start, lowest, _MAGNITUDE, indices, count)
    return count


@kernel
def momentum_select(  # noqa: PLR0917 - four arrays, a selection, four scalars of a rule
    gradient: Values,
    parameters: Values,
    velocity: Values,
    residual: Values,
    threshold: float,
    indices: Indices,
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
    bits = residual.view(np.int32)
    lowest = _lowest_bits(threshold)
    rule = (np.float32(momentum), np.float32(weight_decay), nesterov, np.float32(scale))
    count = 0
    for start in range(0, len(residual), _CACHED):
        stop = min(start + _CACHED, len(residual))
        part = slice(start, stop)
        _add_with_momentum(gradient[part], parameters[part], velocity[part], residual[part], rule)
        count = _scan(bits[part], start, lowest, _MAGNITUDE, indices, count)
    return count


@kernel
def select(residual: Values, threshold: float, indices: Indices) -> int:
    """Select from `residual`, which does not change; arguments and result as of `accumulate_select`."""
    return _scan(residual.view(np.int32), 0, _lowest_bits(threshold), _MAGNITUDE, indices, 0)


@kernel
def take(residual: Values, indices: Indices, values: Values) -> None:
    """Move the entries at `indices` (shape (m,)) from `residual`, where zeros remain, to `values` (shape (m,)).

    Raises:
        ValueError: `values` has another length than `indices`.
    """
    _check_lengths(len(values), len(indices))
    for j in range(len(indices)):
        i = np.uint32(indices[j])
        values[j] = residual[i]
        residual[i] = np.float32(0.0)


def take_rounded(residual: Values, indices: Indices, codes: Codes, kind: HalfKind) -> None:
    """Move the entries at `indices` (shape (m,)) to `codes` (shape (m,), uint16); `residual` keeps what is lost.

    For a finite entry v, `residual + decoded(code) == v` holds in fp32 afterwards. The code is that of
    `kernels.half.to_half`, except for a few fp16 values from 2**29 on, which could not keep that promise with the
    largest code: they get the one before. Of infinity and NaN nothing remains. Allocates 2 KiB.

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
    """Exactly the k-th largest |value|, 1 <= k <= n; NaN counts as the largest. Allocates 16 KiB.

    Raises:
        ValueError: k is not between 1 and n.
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"k = {k} of {len(values)} values: expected 1 to {len(values)}")
    return float(_kth_largest(values.view(np.int32), k))


def warm_up() -> None:
    """Compile these kernels, or load them from the disk cache, so that the first real call does not wait."""
    values = np.zeros(1, dtype=np.float32)
    others = np.zeros((3, 1), dtype=np.float32)
    indices = np.zeros(1, dtype=np.int32)
    accumulate_select(others[0], values, 1.0, indices)
    momentum_select(others[0], others[1], others[2], values, 1.0, indices, 0.9, 0.0, False, 1.0)
    select(values, kth_largest_magnitude(values, 1), indices)
    take(values, indices, others[0])
    take_rounded(values, indices, np.zeros(1, dtype=np.uint16), "fp16")
    clear(values, indices)


@kernel
def _scan(  # noqa: PLR0917 - where it begins, a range of magnitudes, where to append
    bits: Bits, start: int, least: np.int32, most: np.int32, indices: Indices, count: int
) -> int:
    """Append the positions of magnitudes from `least` to `most` to `indices[:count]`; returns the new count.

    `bits` begins at position `start`. The rest of `indices` holds anything then.
    """
    whole = len(bits) // _LANES
    for block in range(whole):
        mask = _within(bits[block * _LANES : (block + 1) * _LANES], _LANES, least, most)
        count = _append(mask, start + block * _LANES, indices, count)
    rest = bits[whole * _LANES :]
    return _append(_within(rest, len(rest), least, most), start + whole * _LANES, indices, count)


@kernel
def _within(bits: Bits, lanes: int, least: np.int32, most: np.int32) -> np.uint64:
    """One bit for each of at most 64 entries: whether its magnitude lies from `least` to `most`."""
    mask = np.uint64(0)
    for i in range(lanes):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        mask |= np.uint64((magnitude >= least) & (magnitude <= most)) << np.uint64(i)
    return mask


@kernel
def _append(mask: np.uint64, start: int, indices: Indices, count: int) -> int:
    # Two steps a turn, even where nothing is left: a branch for each entry would be mispredicted too often.
    while count + 2 <= len(indices):
        for _ in range(2):
            indices[np.uint64(count)] = start + trailing_zeros(mask)
            count += mask != 0
            mask &= mask - np.uint64(1)
        if mask == 0:
            return count
    while mask:
        if count < len(indices):
            indices[np.uint64(count)] = start + trailing_zeros(mask)
        count += 1
        mask &= mask - np.uint64(1)
    return count


@kernel
def _add(gradient: Values, residual: Values) -> None:
    for i in range(len(residual)):
        residual[i] += gradient[i]


@kernel
def _lowest_bits(threshold: float) -> np.int32:
    """The bits of the smallest fp32 magnitude that is selected."""
    rounded = np.float32(threshold)
    bits = rounded.view(np.int32)
    if rounded < threshold:
        bits = np.int32(bits + np.int32(1))
    return bits if threshold > 0 else np.int32(1)


@kernel
def _add_with_momentum(
    gradient: Values,
    parameters: Values,
    velocity: Values,
    residual: Values,
    rule: tuple[np.float32, np.float32, bool, np.float32],
) -> None:
    momentum, decay, nesterov, scale = rule
    for i in range(len(residual)):
        d = gradient[i] * scale + decay * parameters[i]
        v = momentum * velocity[i] + d
        velocity[i] = v
        residual[i] += d + momentum * v if nesterov else v


@kernel
def _check_lengths(seen: int, expected: int) -> None:
    if seen != expected:
        raise ValueError("selection: arrays of different lengths; expected as many entries in each")


@kernel
def _take_rounded(residual: Values, indices: Indices, codes: Codes, fp16: bool) -> None:
    _check_lengths(len(codes), len(indices))
    buffer = np.empty(_CACHED, dtype=np.float32)
    # Gathering, rounding and scattering in turn: all in one, an element's many instructions would keep the processor
    # from fetching the next ones.
    for start in range(0, len(indices), _CACHED):
        chosen = indices[start : start + _CACHED]
        values = buffer[: len(chosen)]
        take(residual, chosen, values)
        split(values, codes[start : start + _CACHED], fp16)
        for j in range(len(chosen)):
            residual[np.uint32(chosen[j])] = values[j]


@kernel
def _kth_largest(bits: Bits, k: int) -> np.float32:
    """Radix selection from the highest digit on: each pass counts the entries that share the digits found so far."""
    counts = np.zeros(_DIGITS, dtype=np.int64)
    hits = np.empty(_CACHED, dtype=np.int32)
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


@kernel
def _count(  # noqa: PLR0917 - a range of magnitudes, a rank, two scratch arrays
    bits: Bits, least: int, most: int, shift: int, rank: int, counts: Counts, hits: Indices
) -> tuple[int, int]:
    """The `rank`-th largest magnitude from `least` to `most`: its digit at `shift` above `least`, its rank there."""
    counts[:] = 0
    for start in range(0, len(bits), _CACHED):
        part = bits[start : start + _CACHED]
        for j in range(_scan(part, 0, np.int32(least), np.int32(most), hits, 0)):
            counts[((part[np.uint32(hits[j])] & _MAGNITUDE) - least) >> shift] += 1
    return _walk(counts, rank)


@kernel
def _walk(counts: Counts, rank: int) -> tuple[int, int]:
    """The digit of the `rank`-th largest entry, -1 when there are fewer, and its rank among those of this digit."""
    digit = len(counts) - 1
    while digit >= 0 and counts[digit] < rank:
        rank -= counts[digit]
        digit -= 1
    return digit, rank
