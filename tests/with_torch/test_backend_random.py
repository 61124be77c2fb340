"""Random programs of collectives over the backend and over Gloo; `benchmarks.random_collectives` runs more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks

from benchmarks.random_collectives import compare_programs

PROGRAMS = 24


def run_programs(rank: int) -> list[Any]:
    counts, differing = compare_programs(range(PROGRAMS))
    # One element is contiguous whatever its stride.
    strided = torch.full((2,), 1.0 + rank)[::2]
    dist.broadcast(strided, 1)
    return [dict(counts), differing, strided.tolist()]


def test_programs_end_as_over_gloo(tmp_path: Path) -> None:
    for counts, differing, strided in on_ranks(3, tmp_path, run_programs):
        assert not differing, "\n".join(differing)
        assert counts["equal"] > PROGRAMS // 3
        assert strided == [2.0]
