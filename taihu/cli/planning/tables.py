"""`taihu plan memory --table`: the tables of the ZeRO paper, beside which jobs of one's own can be held."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from taihu.core.base.words import aligned
from taihu.core.planner.zero_tables import memory_per_device, model_sizes
from taihu.core.process.results import check_writable, write_json

__all__ = ["plan_tables"]

_TABLES: Final = (
    ("1", "GB of model states on each device, mixed precision and Adam, by the degree of data parallelism (DP)"),
    (
        "2",
        "the largest model on devices of 32 GB, by the degree of model parallelism (MP); 64 devices share data",
    ),
)


def plan_tables(json_file: Path | None) -> None:
    """Print tables 1 and 2 of the ZeRO paper (Rajbhandari et al. 2020), computed by the planner's formulas."""
    check_writable(json_file)
    tables = (memory_per_device(), model_sizes())
    for (number, about), rows in zip(_TABLES, tables, strict=True):
        typer.echo(f"table {number}: {about}")
        for line in aligned(rows, left=0):
            typer.echo(line)
        typer.echo("")
    if json_file is not None:
        named = {f"table_{number}": rows for (number, _), rows in zip(_TABLES, tables, strict=True)}
        write_json(json_file, named)
