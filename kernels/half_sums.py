"""16-bit values of mixed precision: narrowed with a look at what does not fit, checked, and summed in fp32.

Micikevicius et al. 2018 (mixed precision training), section 3; codes are those of `taihu.kernels.base.half`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.arrays import read_only
from taihu.kernels.base.half import HALF_KINDS, INFINITY_CODES, HalfKind, add_half, decode, encode, from_half, to_half
from taihu.kernels.base.jit import kernel

_MAGNITUDE = np.uint16(0x7FFF)


def narrow(values: NDArray[np.float32], kind: HalfKind, out: NDArray[np.uint16], largest: float) -> bool:
    """Set `out[i]` to the code of `values[i]`, as `to_half`; returns whether every magnitude is at most `largest`.

    Args:
        values: shape (n,), fp32, contiguous.
        kind: `fp16` or `bf16`.
        out: shape (n,), uint16, contiguous; shares no memory with `values`.
        largest: a finite magnitude; NaN is beyond every one.

    Raises:
        ValueError: another kind, shape or dtype. `out` is unchanged.
    """
    _check(kind, values, out)
    return bool(_narrow(read_only(values), out, np.float32(largest), kind == "fp16"))


def all_finite_half(codes: NDArray[np.uint16], kind: HalfKind) -> bool:
    """Whether no value of `codes` (shape (n,), uint16) is infinite or NaN."""
    return bool(_all_below(read_only(codes), INFINITY_CODES[kind]))


def sum_half_in_rank_order(frames: Sequence[NDArray[np.uint16]], kind: HalfKind, out: NDArray[np.float32]) -> None:
    """Set `out[i]` to `((frames[0][i] + frames[1][i]) + frames[2][i]) + ...`, every sum rounded to fp32.

    Args:
        frames: one contribution of shape (n,), uint16, for each rank, in rank order.
        kind: `fp16` or `bf16`.
        out: shape (n,), fp32, contiguous.

    Raises:
        ValueError: there is no frame, or one of another shape or dtype. `out` is unchanged.
    """
    if not frames:
        raise ValueError("16-bit frames to sum: none; expected at least one")
    for frame in frames:
        _check(kind, out, frame)
    from_half(frames[0], kind, out)
    for frame in frames[1:]:
        _accumulate(read_only(frame), out, kind == "fp16")


def warm_up(kind: HalfKind) -> None:
    """Compile these kernels and those of `kernels.half`, or load them from the disk cache: no real call waits."""
    values, codes = np.zeros(1, dtype=np.float32), np.zeros(1, dtype=np.uint16)
    narrow(values, kind, codes, 1.0)
    to_half(values, kind, codes)
    add_half(codes.copy(), kind, codes)
    all_finite_half(codes, kind)
    sum_half_in_rank_order([codes] * 2, kind, values)


def _check(kind: str, values: NDArray[Any], codes: NDArray[Any]) -> None:
    if kind not in HALF_KINDS:
        raise ValueError(f"16-bit kind {kind!r}: expected fp16 or bf16")
    if values.dtype != np.float32 or codes.dtype != np.uint16 or values.shape != codes.shape or values.ndim != 1:
        seen = f"{values.dtype}{list(values.shape)} and {codes.dtype}{list(codes.shape)}"
        raise ValueError(f"fp32 values and 16-bit codes: {seen}; expected float32[n] and uint16[n]")


@kernel
def _narrow(values: NDArray[np.float32], out: NDArray[np.uint16], largest: np.float32, fp16: bool) -> bool:
    fit = True
    for i in range(len(out)):
        out[i] = np.uint16(encode(values[i], fp16))
        fit &= abs(values[i]) <= largest
    return fit


@kernel
def _all_below(codes: NDArray[np.uint16], bound: np.uint16) -> bool:
    below = True
    for i in range(len(codes)):
        below &= (codes[i] & _MAGNITUDE) < bound
    return below


@kernel
def _accumulate(codes: NDArray[np.uint16], out: NDArray[np.float32], fp16: bool) -> None:
    for i in range(len(out)):
        out[i] += decode(np.uint32(codes[i]), fp16)
