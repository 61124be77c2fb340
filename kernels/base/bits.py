"""Words of bits, as the decoders of index sections and the marks of summed elements need them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel_part


@kernel_part
def integer(array: NDArray[np.integer], i: int) -> int:
    """`array[i]` in 64 bits, so that arithmetic with it does not wrap around."""
    return int(np.int64(array[i]))


@kernel_part
def trailing_zeros(word: np.uint64) -> int:
    """The position of the lowest one of `word`, which is not 0."""
    # The ones of `below` are counted in a way that LLVM knows: all of this becomes one instruction.
    below = ~word & (word - np.uint64(1))
    pairs = below - ((below >> np.uint64(1)) & np.uint64(0x5555555555555555))
    nibbles = (pairs & np.uint64(0x3333333333333333)) + ((pairs >> np.uint64(2)) & np.uint64(0x3333333333333333))
    octets = (nibbles + (nibbles >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int(np.int64((octets * np.uint64(0x0101010101010101)) >> np.uint64(56)))


@kernel_part
def load_word(octets: NDArray[np.uint8], at: int) -> np.uint64:
    """The 8 bytes from `at`, little-endian; zeros stand for those beyond the end."""
    word = np.uint64(0)
    for i in range(min(8, len(octets) - at)):
        word |= np.uint64(octets[at + i]) << np.uint64(8 * i)
    return word
