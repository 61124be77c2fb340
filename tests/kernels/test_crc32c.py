"""The checksum of kernels against the package `crc32c`, which computes it in C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crc32c import crc32c as by_package
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.base.jit import kernel
from taihu.kernels.crc32c import HAS_INSTRUCTION, _in_streams, checksum_words, crc32c

pytestmark = pytest.mark.skipif(not HAS_INSTRUCTION, reason="this processor has no instruction for it")

# Three streams of 256 words each.
BLOCK_BYTES = 6144
LARGEST_BYTES = 20_000
# Around blocks, where the streams are joined, and around words, of which the rest goes byte by byte.
sizes = st.one_of(
    st.integers(0, 40),
    st.builds(lambda blocks, more: blocks * BLOCK_BYTES + more, st.integers(1, 3), st.integers(-17, 17)),
    st.integers(0, LARGEST_BYTES),
)


@kernel
def checksum_at(content: NDArray[np.uint8], start: int, size: int) -> int:
    """The checksum of a range, which begins anywhere."""
    return crc32c(content.ctypes.data + start, size)


@kernel
def checksum_in_parts(content: NDArray[np.uint8], cut: int) -> int:
    """The checksum of all, computed of what lies before and behind a cut."""
    return crc32c(content.ctypes.data + cut, len(content) - cut, crc32c(content.ctypes.data, cut))


@kernel
def checksum_in_streams(words: NDArray[np.uint64]) -> int:
    """The checksum of words by a processor without products of 512 bits."""
    return int(np.int64(np.uint32(_in_streams(words, np.uint64(0xFFFFFFFF))) ^ np.uint32(0xFFFFFFFF)))


def random_bytes(size: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@settings(max_examples=600)
@given(sizes, st.integers(0, 16), st.integers(0, 10**6))
@example(BLOCK_BYTES, 1, 0)
@example(3 * BLOCK_BYTES, 0, 0)
def test_the_checksum_of_any_memory_is_that_of_the_package(size: int, start: int, seed: int) -> None:
    content = random_bytes(start + size + 9, seed)
    assert checksum_at(content, start, size) == by_package(content[start : start + size].tobytes())


@pytest.mark.parametrize("start", [0, 3])
def test_it_is_that_of_the_package_for_every_size_near_one_block(start: int) -> None:
    content = random_bytes(start + BLOCK_BYTES + 40, 7)
    for size in (*range(800), *range(BLOCK_BYTES - 40, BLOCK_BYTES + 40)):
        assert checksum_at(content, start, size) == by_package(content[start : start + size].tobytes())


@settings(max_examples=200)
@given(sizes, sizes, st.integers(0, 10**6))
def test_it_goes_on_from_what_came_before(first: int, second: int, seed: int) -> None:
    content = random_bytes(first + second, seed)
    assert checksum_in_parts(content, first) == by_package(content.tobytes())


@settings(max_examples=100)
@given(st.integers(0, LARGEST_BYTES // 8), st.integers(0, 10**6))
def test_the_checksum_of_words_is_that_of_their_bytes(count: int, seed: int) -> None:
    words = random_bytes(8 * count, seed).view(np.uint64)
    assert checksum_words(words) == by_package(words.tobytes())
    assert checksum_in_streams(words) == by_package(words.tobytes())


# Streams of zeros or ones are where a table of another shift, or a wrong start, could hide.
@pytest.mark.parametrize("octet", [0x00, 0xFF])
def test_memory_of_one_value_has_the_checksum_of_the_package(octet: int) -> None:
    content = np.full(LARGEST_BYTES, octet, dtype=np.uint8)
    for size in (0, 1, 32, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, LARGEST_BYTES):
        assert checksum_at(content, 0, size) == by_package(content[:size].tobytes())


@settings(max_examples=200)
@given(st.integers(1, LARGEST_BYTES), st.data())
def test_every_turned_bit_changes_it(size: int, data: st.DataObject) -> None:
    content = random_bytes(size, size)
    before: Any = checksum_at(content, 0, size)
    bit = data.draw(st.integers(0, 8 * size - 1))
    content[bit // 8] ^= 1 << bit % 8
    assert checksum_at(content, 0, size) != before


def test_the_known_checksum_of_nine_digits() -> None:
    assert checksum_at(np.frombuffer(b"123456789", dtype=np.uint8).copy(), 0, 9) == 0xE3069283
