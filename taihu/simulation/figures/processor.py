"""Figures of docs/methods.md section 6: swDNN's convolutions and large products on the SW26010.

Both come from the model of the processor (`taihu.kernels.sw26010`), as `taihu dev bench sw26010` shows it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from taihu.kernels.sw26010.grids import PUBLISHED_LOG, PUBLISHED_SWDNN, paper_grid, rows_of, swdnn_grid
from taihu.simulation.figures.figure import Figure, Panel, Row, Series

_FASTEST_GFLOPS: Final = 1600.0
_PRODUCT_SHARES: Final = (0.887, 0.95)
_LARGE: Final = 4096
_NARROW: Final = "tiles of one to three columns: work between their products, and DMA of each, is not in the model"


_SWEPT: Final = "DMA in blocks of 128 bytes, as a batch of 128 has them, limits it"
_EDGE: Final = "of the smallest matrix the start of the pipeline is a larger share"


def convolutions() -> Figure:
    """GFLOP/s of swDNN's 172 configurations, and of some of them one by one."""
    ours = sorted(shape.run("log").gflops for shape in swdnn_grid())
    least, median, most = PUBLISHED_SWDNN
    sums = [
        _row(f"172 configurations, {name}", paper, own)
        for name, paper, own in (
            ("the least", least, ours[0]),
            ("the median", median, statistics.median(ours)),
            ("the most", most, ours[-1]),
        )
    ]
    single = [_row(str(shape), measured, shape.run("log").gflops) for shape, measured in PUBLISHED_LOG]
    fastest = max(shape.cost().gflops for shape in paper_grid())
    swept = Row("the fastest of the paper's sweep", (_FASTEST_GFLOPS, math.inf), fastest, _SWEPT, basis="bound")
    return Figure(
        "GFLOP/s of convolutions in fp64 on four core groups: swDNN's log, and our model of the processor",
        "of the processor alone (docs/sw26010.md): clock, DMA by length of blocks, latencies; that the loop waits "
        "for its operands is concluded from the log, nothing else is from these figures",
        [*sums, *single, swept],
        (_by_speed(ours), _one_by_one(single)),
    )


def _row(case: str, measured: float, own: float) -> Row:
    return Row(case, (measured,), own, _NARROW if abs(own / measured - 1.0) > 0.2 else "", basis="fitted")


def _by_speed(ours: Sequence[float]) -> Panel:
    least, median, most = PUBLISHED_SWDNN
    series = (
        Series("ours", tuple(range(len(ours))), ours, "points"),
        Series("measured, least to most", (), (least, most), "range"),
        Series(f"measured, median {median:.0f}", (), (median, median), "range"),
    )
    return Panel("172 configurations of the log", "configuration, by speed", "GFLOP/s", series)


def _one_by_one(rows: Sequence[Row]) -> Panel:
    measured = [row.paper[0] for row in rows]
    ends = (min(measured), max(measured))
    series = (Series("ours", measured, [row.ours for row in rows], "points"), Series("equal", ends, ends))
    return Panel("single configurations", "measured GFLOP/s", "ours", series)


def products() -> Figure:
    """Shares of a core group's peak that products of square matrices reach."""
    ledgers = [(int(row.configuration.split("x")[0]), row.ledger) for row in rows_of("dgemm", "")]
    shares = [(size, ledger.efficiency) for size, ledger in ledgers if ledger is not None]
    rows = [
        Row(f"{size} x {size}", _PRODUCT_SHARES, share, _EDGE * (share < _PRODUCT_SHARES[0]), basis="bound")
        if size >= _LARGE
        else Row(f"{size} x {size}", (), share, basis="not printed")
        for size, share in shares
    ]
    series = (
        Series("ours", [size for size, _ in shares], [share for _, share in shares]),
        Series("published, large matrices", (), _PRODUCT_SHARES, "range"),
    )
    return Figure(
        "share of 765.6 GFLOP/s of a core group that fp64 products of square matrices reach",
        "of the processor alone (docs/sw26010.md), none from this figure; published are large matrices",
        rows,
        (Panel("DGEMM on one core group", "size", "share of the peak", series, "x"),),
    )
