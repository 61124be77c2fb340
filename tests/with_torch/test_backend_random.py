"""Random programs of collectives over the backend and over Gloo; `backend.random_collectives` runs more.

Where both differ a rank computes outputs by itself: these are Gloo's, too, and who differs from them is at fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks

from benchmarks.backend import random_collectives
from benchmarks.backend.random_collectives import compare_programs

PROGRAMS = 24
COMPUTED = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "scatter", "all_gather", "gather", "all_to_all")


def run_programs(rank: int) -> list[Any]:
    counts, differing = compare_programs(range(PROGRAMS))
    # One element is contiguous whatever its stride.
    strided = torch.full((2,), 1.0 + rank)[::2]
    dist.broadcast(strided, 1)
    return [dict(counts), differing, strided.tolist(), *judged(rank)]


def judged(rank: int) -> list[Any]:
    """Kinds whose computed outputs are others than Gloo's; and the judgement of values that neither of both has."""
    ranks = random_collectives.Ranks(dist.new_group(backend="gloo"), rank, dist.get_world_size(), is_gloo=True)
    others = []
    for number, kind in enumerate(COMPUTED):
        step = random_collectives.Step(
            kind, torch.float32, (7,), False, "MAX" if number % 2 else "SUM", 1, number, False
        )
        computed = random_collectives._computed(step, ranks)
        assert computed is not None
        if random_collectives._difference([computed], random_collectives._outcome([step], ranks, 0)):
            others.append(kind)
    assert computed is not None
    wrong = [[each + 1 for each in computed]]
    judge = random_collectives._is_gloos_own
    return [others, [judge([step], ranks, [computed], wrong), judge([step], ranks, wrong, [computed])]]


def test_programs_end_as_over_gloo(tmp_path: Path) -> None:
    for counts, differing, strided, others, judgements in on_ranks(3, tmp_path, run_programs):
        assert others == []
        assert judgements == [True, False]
        assert not differing, "\n".join(differing)
        assert counts["equal"] > PROGRAMS // 3
        assert strided == [2.0]
