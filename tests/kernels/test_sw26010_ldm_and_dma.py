"""The allocator refuses what does not fit, and DMA costs what the table says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.kernels.sw26010.dma import Transfer, bandwidth, spread
from taihu.kernels.sw26010.errors import LdmOverflowError
from taihu.kernels.sw26010.ldm import Ldm
from taihu.kernels.sw26010.machine import CLOCK_HZ, DMA_ISSUE_CYCLES, DMA_TABLE, PEAK_FLOPS_PER_GROUP


@given(st.lists(st.integers(0, 30_000), max_size=12))
def test_ldm_takes_what_fits_and_nothing_more(sizes: list[int]) -> None:
    ldm, taken = Ldm(), 0
    for index, size in enumerate(sizes):
        rounded = (size + 31) // 32 * 32
        if taken + rounded <= 60 * 1024:
            ldm.allocate(str(index), size)
            taken += rounded
        else:
            with pytest.raises(LdmOverflowError):
                ldm.allocate(str(index), size)
        assert ldm.free_bytes == 60 * 1024 - taken == 60 * 1024 - sum(ldm.tiles.values())
    for name in list(ldm.tiles):
        ldm.release(name)
    assert ldm.free_bytes == 60 * 1024


def test_an_overflow_names_the_tile_the_bytes_and_the_remedy() -> None:
    ldm = Ldm()
    ldm.allocate("A", 40_000)
    with pytest.raises(LdmOverflowError) as raised:
        ldm.allocate("B, double buffered", 30_001, "use smaller blocks")
    assert str(raised.value) == (
        "tile B, double buffered: asked for 30016 bytes of LDM in each CPE, 21440 of 61440 are free; "
        "use smaller blocks"
    )
    with pytest.raises(LdmOverflowError, match="tile A: is in LDM already"):
        ldm.allocate("A", 32)


@pytest.mark.parametrize(("block", "rate"), DMA_TABLE)
def test_measured_blocks_have_their_measured_bandwidth(block: int, rate: float) -> None:
    assert bandwidth(block) == pytest.approx(rate)
    seconds = (Transfer(((block, 10**6),)).cycles - DMA_ISSUE_CYCLES) / CLOCK_HZ
    assert block * 10**6 / seconds == pytest.approx(rate, rel=1e-4)


@given(st.integers(1, 1 << 20))
def test_bandwidth_lies_between_its_neighbours_in_the_table(block: int) -> None:
    below = [rate for length, rate in DMA_TABLE if length <= block] or [0.0]
    above = [rate for length, rate in DMA_TABLE if length >= block] or [DMA_TABLE[-1][1]]
    assert min(below[-1], above[0]) <= bandwidth(block) <= max(below[-1], above[0])


@given(st.integers(0, 40), st.integers(0, 300), st.integers(1, 8), st.sampled_from([4, 8]))
def test_spread_lines_move_every_element_once(lines: int, length: int, parts: int, itemsize: int) -> None:
    transfer = spread(lines, length, parts, itemsize)
    assert transfer.total_bytes == lines * length * itemsize
    # No CPE has more than its share, so that no more of them than there are take part.
    assert sum(blocks for _, blocks in transfer.runs) <= lines * parts
    assert all(block <= -(-length // parts) * itemsize for block, _ in transfer.runs)
    assert transfer.scaled(3).total_bytes == 3 * transfer.total_bytes


def test_a_group_has_its_published_peak() -> None:
    assert pytest.approx(765.6e9) == PEAK_FLOPS_PER_GROUP
