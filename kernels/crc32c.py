"""CRC-32C (Castagnoli) for kernels of x86-64 processors: by carry-less products, or by its own instruction.

Where a processor has no products of 512 bits, three streams of that instruction run at a time. One takes three
cycles, and one begins in each: three ranges that lie behind each other keep it busy. Their checksums are joined by
what a range of zeros makes of the first ones, four lookups a checksum, as the CRC is linear. Gopal et al., "Fast CRC
Computation for iSCSI Polynomial Using CRC32 Instruction" (Intel, 2011), section 3.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel, kernel_part
from taihu.kernels.base.memory import memory_at
from taihu.kernels.crc32c_folding import BLOCK_WORDS, HAS_FOLDING, folded, times_x

HAS_INSTRUCTION: Final = (
    sys.platform == "linux"
    and platform.machine() == "x86_64"
    and binding.get_host_cpu_features().get("sse4.2", False)
)
"""Whether this machine's kernels can compute it; elsewhere none of this module may be called."""

_BITS: Final = 32
# Of each of three streams: a block's join costs little beside it, and a rest, which goes in one stream, is short.
_STREAM_WORDS: Final = 256


def _applied(matrix: list[int], vector: int) -> int:
    product = 0
    for bit in range(_BITS):
        if vector >> bit & 1:
            product ^= matrix[bit]
    return product


def _shift_tables(zero_bytes: int) -> NDArray[np.uint32]:
    """Tables, shape (4, 256), of what so many zeros (a power of two) make of each byte of a checksum."""
    matrix = [times_x(1 << bit, 8) for bit in range(_BITS)]
    for _ in range(zero_bytes.bit_length() - 1):
        matrix = [_applied(matrix, column) for column in matrix]
    table = [[_applied(matrix, value << 8 * octet) for value in range(256)] for octet in range(4)]
    return np.array(table, dtype=np.uint32)


_ONE_STREAM: Final = _shift_tables(8 * _STREAM_WORDS)
_TWO_STREAMS: Final = _shift_tables(16 * _STREAM_WORDS)


def _instruction(name: str, crc_type: Any, data_type: Any) -> Callable[[Any, Any], Any]:
    """An instruction of x86-64 by LLVM's name: the checksum of what has been seen and of one piece of data more."""

    def declare(typing_context: Any, crc: Any, data: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            form = ir.FunctionType(ir.IntType(crc_type.bitwidth), [each.type for each in arguments])
            untyped: Any = cgutils
            return builder.call(untyped.get_or_insert_function(builder.module, form, name), arguments)

        return crc_type(crc_type, data_type), generate

    return cast(Callable[[Any, Any], Any], intrinsic(declare))


_add_word = _instruction("llvm.x86.sse42.crc32.64.64", types.uint64, types.uint64)
_add_byte = _instruction("llvm.x86.sse42.crc32.32.8", types.uint32, types.uint8)


@kernel_part
def _shifted(table: NDArray[np.uint32], crc: np.uint64) -> np.uint64:
    shifted = table[0, crc & np.uint64(255)] ^ table[1, (crc >> np.uint64(8)) & np.uint64(255)]
    shifted ^= table[2, (crc >> np.uint64(16)) & np.uint64(255)] ^ table[3, (crc >> np.uint64(24)) & np.uint64(255)]
    return np.uint64(shifted)


@kernel_part
def _by_folding(words: NDArray[np.uint64], crc: np.uint64) -> np.uint64:
    blocks = len(words) // BLOCK_WORDS
    if blocks:
        crc = folded(words.ctypes.data, blocks, crc)
    for i in range(blocks * BLOCK_WORDS, len(words)):
        crc = _add_word(crc, words[i])
    return crc


@kernel_part
def _in_streams(words: NDArray[np.uint64], crc: np.uint64) -> np.uint64:
    at = 0
    while at + 3 * _STREAM_WORDS <= len(words):
        second, third = np.uint64(0), np.uint64(0)
        for i in range(at, at + _STREAM_WORDS):
            crc = _add_word(crc, words[i])
            second = _add_word(second, words[i + _STREAM_WORDS])
            third = _add_word(third, words[i + 2 * _STREAM_WORDS])
        crc = _shifted(_TWO_STREAMS, crc) ^ _shifted(_ONE_STREAM, second) ^ third
        at += 3 * _STREAM_WORDS
    for i in range(at, len(words)):
        crc = _add_word(crc, words[i])
    return crc


_of_words = _by_folding if HAS_FOLDING else _in_streams


@kernel_part
def crc32c(address: int, size: int, before: int = 0) -> int:
    """The checksum of `size` bytes at `address`, for kernels; neither is checked.

    `before` is that of bytes which come before them.
    """
    words = size // 8
    start = np.uint64(before) ^ np.uint64(0xFFFFFFFF)
    crc = np.uint32(_of_words(memory_at(address, words, np.uint64), start))
    for octet in memory_at(address + 8 * words, size - 8 * words, np.uint8):
        crc = _add_byte(crc, octet)
    return int(np.int64(crc ^ np.uint32(0xFFFFFFFF)))


@kernel
def checksum_at(address: int, size: int, before: int) -> int:
    """As `crc32c`, from Python."""
    return crc32c(address, size, before)


@kernel
def checksum_words(words: NDArray[np.uint64]) -> int:
    """The checksum of `words` (shape (n,), uint64, contiguous), as `core.wire.frames.checksum` would have it."""
    return crc32c(words.ctypes.data, 8 * len(words))
