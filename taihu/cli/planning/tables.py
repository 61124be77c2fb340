"""`taihu plan memory --table`: the tables of the ZeRO paper, beside which jobs of one's own can be held."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from taihu.core.base.words import aligned
from taihu.core.planner.zero_tables import activations, memory_per_device, model_sizes, trained_alone
from taihu.core.process.results import check_writable, write_json

_TABLES: Final = (
    (
        "table 1",
        "GB of model states on each device, mixed precision and Adam, by the degree of data parallelism (DP)",
    ),
    (
        "table 2",
        "the largest model on devices of 32 GB, by the degree of model parallelism (MP); 64 devices share data",
    ),
    (
        "activations",
        "GB of transformers on a device, 16 bits, 32 sequences of 1,024 tokens, by 12 values of a layer for each "
        "input (sections 3.2 and 6.1)",
    ),
    ("trained alone", "the largest model without model parallelism on devices of 32 GB (section 10.4)"),
)


def plan_tables(json_file: Path | None) -> None:
    """Print the tables of the ZeRO paper (Rajbhandari et al. 2020), computed by the planner's formulas."""
    check_writable(json_file)
    tables = (memory_per_device(), model_sizes(), activations(), trained_alone())
    for (name, about), rows in zip(_TABLES, tables, strict=True):
        typer.echo(f"{name}: {about}")
        for line in aligned(rows, left=0):
            typer.echo(line)
        typer.echo("")
    if json_file is not None:
        named = {name.replace(" ", "_"): rows for (name, _), rows in zip(_TABLES, tables, strict=True)}
        write_json(json_file, named)
