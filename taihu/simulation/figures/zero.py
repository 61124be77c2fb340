"""Table 1 of the ZeRO paper (docs/methods.md section 5)."""

from __future__ import annotations

from typing import Final

from taihu.core.planner.zero_tables import memory_per_device
from taihu.simulation.figures.figure import Figure, Panel, Row, Series

_PRINTED_GB: Final = (
    (120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000),
    (52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000),
    (35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000),
    (31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250),
    (30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5),
    (30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6),
)
_STAGES: Final = 3


def zero_memory() -> Figure:
    """GB of model states on each device, by the number of devices."""
    title, *ours = memory_per_device()
    devices = [int(each) for each, *_ in ours]
    rows = [
        Row(f"{count} devices, {column}", (paper,), float(own), basis="definition")
        for (count, *owns), papers in zip(ours, _PRINTED_GB, strict=True)
        for column, paper, own in zip(title[1:], papers, owns, strict=True)
    ]
    columns = title[1:]
    panels = []
    for first in range(0, len(columns), _STAGES):
        series = []
        for column in range(first, first + _STAGES):
            name = columns[column].split()[1]
            series.append(Series(name, devices, [float(row[column + 1]) for row in ours]))
            series.append(Series(f"{name}, printed", devices, [row[column] for row in _PRINTED_GB], "points"))
        model = columns[first].split()[0]
        panels.append(Panel(f"{model} parameters", "devices", "GB on each", series, "xy"))
    return Figure(
        "GB of model states on each device, mixed precision and Adam", "12 bytes of optimizer state", rows, panels
    )
