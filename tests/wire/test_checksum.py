"""The checksum against its definition, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from support.checksums import crc32c_by_table

from taihu.core.wire.frames.format import checksum_of_all

CHECK_VALUE = 0xE3069283


def test_the_check_value_of_the_standard() -> None:
    assert crc32c_by_table(b"123456789") == CHECK_VALUE
    assert crc32c(b"123456789") == CHECK_VALUE
    assert checksum_of_all([]) == crc32c(b"") == 0


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 7))
def test_pieces_have_the_checksum_of_the_whole(pieces: list[bytes], shift: int) -> None:
    unaligned = [memoryview(bytes(shift) + piece)[shift:] for piece in pieces]
    assert checksum_of_all(unaligned) == crc32c(b"".join(pieces)) == crc32c_by_table(b"".join(pieces))


@pytest.mark.parametrize("size", [(128 << 10) - 1, 128 << 10, (128 << 10) + 1, 1_000_003])
@pytest.mark.parametrize("shift", [0, 1, 8])
def test_large_pieces_have_the_checksum_of_the_package(size: int, shift: int) -> None:
    """Kernels compute it from some size on; who sends and who receives would be wrong alike."""
    content = np.random.default_rng(size).bytes(shift + size)
    large, small = memoryview(content)[shift:], content[:77]
    assert checksum_of_all([small, large, small]) == crc32c(small + bytes(large) + small)
    assert checksum_of_all([memoryview(bytearray(large))]) == crc32c(large)


def test_any_size_up_to_where_three_streams_begin_and_end() -> None:
    content = np.random.default_rng(1).bytes(26_000)
    for size in (*range(70), 255, 256, 767, 768, 769, 1023, 8191, 8192, 24_575, 24_576, 24_577, 26_000):
        assert crc32c(content[:size]) == crc32c_by_table(content[:size])


def test_values_of_any_type_are_taken_as_they_lie() -> None:
    values = np.arange(9, dtype=np.float64)
    assert crc32c(values.view(np.uint8).data) == crc32c_by_table(values.tobytes())
