"""The 16-bit floating-point formats fp16 (IEEE binary16) and bf16 (bfloat16) as codes of dtype uint16.

Encoding rounds to nearest, ties to even. Finite values saturate at the largest finite value of the format (65504 for
fp16, about 3.39e38 for bf16), since one rounded to infinity would poison every replica; infinity stays infinity and
NaN becomes the quiet NaN of the same sign. Decoding is exact. Both work on the bits alone and never depend on whether
the processor flushes subnormal numbers to zero.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from taihu.kernels.base.arrays import read_only
from taihu.kernels.base.jit import kernel, kernel_part

HalfKind = Literal["fp16", "bf16"]
HALF_KINDS: tuple[HalfKind, ...] = get_args(HalfKind)

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_CODE_MAGNITUDE = np.uint32(0x7FFF)
_SIGN = np.uint32(0x8000)
_SIGN_SHIFT = np.uint32(16)
_ONE = np.uint32(1)

_FP16_SHIFT = np.uint32(13)
_FP16_REBIAS = np.uint32((127 - 15) << 23)
_FP16_REBIASED_NORMAL = np.uint32((127 - 14) << 23)
_FP16_NORMAL = np.uint32(0x0400)
_FP16_SUBNORMAL_STEP = np.float32(2.0**-24)
_FP16_LARGEST = np.uint32(0x7BFF)
_FP16_INFINITY = np.uint32(0x7C00)
_FP16_NAN = np.uint32(0x7E00)

_BF16_SHIFT = np.uint32(16)
_BF16_LARGEST = np.uint32(0x7F7F)
_BF16_INFINITY = np.uint32(0x7F80)
_BF16_NAN = np.uint32(0x7FC0)

LARGEST: dict[HalfKind, float] = {
    "fp16": float(np.uint16(_FP16_LARGEST).view(np.float16)),
    "bf16": float(np.uint32(_BF16_LARGEST << _BF16_SHIFT).view(np.float32)),
}
"""The largest finite values."""

INFINITY_CODES: dict[HalfKind, np.uint16] = {
    "fp16": np.uint16(_FP16_INFINITY),
    "bf16": np.uint16(_BF16_INFINITY),
}
"""The codes of infinity; those of finite values, but for their sign, are smaller, and those of NaN larger."""


def to_half(values: NDArray[np.float32], kind: HalfKind, out: NDArray[np.uint16]) -> None:
    """Set `out[i]` to the code of `values[i]`, rounded to nearest even, finite values saturating.

    Args:
        values: shape (n,), fp32, contiguous.
        kind: `fp16` or `bf16`.
        out: shape (n,), uint16, contiguous.

    Raises:
        ValueError: another kind, shape or dtype. `out` is unchanged.
    """
    _check(kind, values, np.float32, out, np.uint16)
    _encode_all(read_only(values), out, kind == "fp16")


def from_half(codes: NDArray[np.uint16], kind: HalfKind, out: NDArray[np.float32]) -> None:
    """Set `out[i]` to the value of `codes[i]`, exactly.

    Args:
        codes: shape (n,), uint16, contiguous.
        kind: `fp16` or `bf16`.
        out: shape (n,), fp32, contiguous.

    Raises:
        ValueError: another kind, shape or dtype. `out` is unchanged.
    """
    _check(kind, codes, np.uint16, out, np.float32)
    _decode_all(read_only(codes), out, kind == "fp16")


def add_half(codes: NDArray[np.uint16], kind: HalfKind, out: NDArray[np.uint16]) -> None:
    """Set `out[i]` to the code of the sum of the values of `out[i]` and `codes[i]`, rounded once from fp32.

    Args:
        codes: shape (n,), uint16, contiguous.
        kind: `fp16` or `bf16`.
        out: shape (n,), uint16, contiguous; shares no memory with `codes`.

    Raises:
        ValueError: another kind, shape or dtype. `out` is unchanged.
    """
    _check(kind, codes, np.uint16, out, np.uint16)
    add_codes(read_only(codes), out, kind == "fp16")


def scale_half(codes: NDArray[np.uint16], kind: HalfKind, factor: float) -> None:
    """Set `codes[i]` to the code of its value times `factor`, rounded once from fp32.

    Args:
        codes: shape (n,), uint16, contiguous, writable.
        kind: `fp16` or `bf16`.
        factor: rounded to fp32 first.

    Raises:
        ValueError: another kind, shape or dtype. `codes` is unchanged.
    """
    _check(kind, codes, np.uint16, codes, np.uint16)
    scale_codes(codes, np.float32(factor), kind == "fp16")


@kernel_part
def _encode_fp16(value: np.float32) -> np.uint32:
    """The fp16 code of `value`, in the lower 16 bits."""
    bits = np.float32(value).view(np.uint32)
    magnitude = np.uint32(bits & _MAGNITUDE)
    normal = min(_round_off(np.uint32(magnitude - _FP16_REBIAS), _FP16_SHIFT), _FP16_LARGEST)
    # The last bit of a number in [0.5, 1) weighs as much as the last bit of a subnormal fp16: adding 0.5 rounds.
    half = np.float32(0.5)
    subnormal = np.uint32(np.float32(magnitude.view(np.float32) + half).view(np.uint32) - half.view(np.uint32))
    code = subnormal if magnitude < _FP16_REBIASED_NORMAL else normal
    if magnitude >= _INFINITY:
        code = _FP16_INFINITY if magnitude == _INFINITY else _FP16_NAN
    return np.uint32((bits >> _SIGN_SHIFT) & _SIGN | code)


@kernel_part
def _decode_fp16(code: np.uint32) -> np.float32:
    """The value of the fp16 `code`."""
    magnitude = np.uint32(code & _CODE_MAGNITUDE)
    shifted = np.uint32(magnitude << _FP16_SHIFT)
    bits = np.uint32(shifted | _INFINITY) if magnitude >= _FP16_INFINITY else np.uint32(shifted + _FP16_REBIAS)
    if magnitude < _FP16_NORMAL:
        bits = np.float32(np.float32(np.int32(magnitude)) * _FP16_SUBNORMAL_STEP).view(np.uint32)
    return np.uint32(bits | (code & _SIGN) << _SIGN_SHIFT).view(np.float32)


@kernel_part
def _encode_bf16(value: np.float32) -> np.uint32:
    """The bf16 code of `value`, in the lower 16 bits."""
    bits = np.float32(value).view(np.uint32)
    magnitude = np.uint32(bits & _MAGNITUDE)
    code = min(_round_off(magnitude, _BF16_SHIFT), _BF16_LARGEST)
    if magnitude >= _INFINITY:
        code = _BF16_INFINITY if magnitude == _INFINITY else _BF16_NAN
    return np.uint32((bits >> _SIGN_SHIFT) & _SIGN | code)


@kernel_part
def _decode_bf16(code: np.uint32) -> np.float32:
    """The value of the bf16 `code`."""
    return np.uint32(code << _BF16_SHIFT).view(np.float32)


@kernel_part
def encode(value: np.float32, fp16: bool) -> np.uint32:
    """The code of `value`, in the lower 16 bits."""
    return _encode_fp16(value) if fp16 else _encode_bf16(value)


@kernel_part
def decode(code: np.uint32, fp16: bool) -> np.float32:
    """The value of `code`."""
    return _decode_fp16(code) if fp16 else _decode_bf16(code)


@kernel
def split(values: NDArray[np.float32], codes: NDArray[np.uint16], fp16: bool) -> None:
    """Set `codes` to the rounded `values` (both of shape (n,)), and `values` to what that takes away.

    For a finite value v, `values + decoded(codes) == v` holds in fp32 then. Of infinity and NaN nothing is left.
    """
    for j in range(len(values)):
        value = values[j]
        code = encode(value, fp16)
        rest = value - decode(code, fp16)
        finite = np.isfinite(value)
        # Between 2**29 and 2**30 the difference to 65504 can be a tie whose rounding the sum does not undo.
        if fp16 and finite and rest + decode(code, fp16) != value:
            code = np.uint32(code - _ONE)
            rest = value - decode(code, fp16)
        codes[j] = np.uint16(code)
        values[j] = rest if finite else np.float32(0.0)


@kernel_part
def _round_off(bits: np.uint32, shift: np.uint32) -> np.uint32:
    """`bits / 2**shift` to the nearest integer, ties to even."""
    odd = np.uint32((bits >> shift) & _ONE)
    below_half = np.uint32((_ONE << np.uint32(shift - _ONE)) - _ONE)
    return np.uint32(np.uint32(bits + below_half + odd) >> shift)


@kernel
def _encode_all(values: NDArray[np.float32], out: NDArray[np.uint16], fp16: bool) -> None:
    for i in range(len(out)):
        out[i] = np.uint16(encode(values[i], fp16))


@kernel
def _decode_all(codes: NDArray[np.uint16], out: NDArray[np.float32], fp16: bool) -> None:
    for i in range(len(out)):
        out[i] = decode(np.uint32(codes[i]), fp16)


@kernel
def add_codes(codes: NDArray[np.uint16], out: NDArray[np.uint16], fp16: bool) -> None:
    """The kernel of `add_half`."""
    for i in range(len(out)):
        out[i] = np.uint16(encode(decode(np.uint32(out[i]), fp16) + decode(np.uint32(codes[i]), fp16), fp16))


@kernel
def scale_codes(codes: NDArray[np.uint16], factor: np.float32, fp16: bool) -> None:
    """The kernel of `scale_half`."""
    for i in range(len(codes)):
        codes[i] = np.uint16(encode(decode(np.uint32(codes[i]), fp16) * factor, fp16))


def _check(kind: str, source: NDArray[Any], source_dtype: DTypeLike, out: NDArray[Any], out_dtype: DTypeLike) -> None:
    if kind not in HALF_KINDS:
        raise ValueError(f"16-bit kind {kind!r}: expected fp16 or bf16")
    if source.dtype != source_dtype or out.dtype != out_dtype or source.shape != out.shape or source.ndim != 1:
        seen = f"{source.dtype}{list(source.shape)} into {out.dtype}{list(out.shape)}"
        raise ValueError(f"16-bit codes: {seen}; expected {np.dtype(source_dtype)}[n] into {np.dtype(out_dtype)}[n]")
