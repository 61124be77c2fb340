"""Steps that the members of a job hold in memory, made without the members."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cluster import layout_of
from taihu.core.checkpoint import run_memory
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.keepers import keepers
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import NOTHING, Elements, State
from taihu.core.checkpoint.run_memory import memory_of
from taihu.core.job import Job
from taihu.core.planner.partition import Shard

__all__ = ["LAYOUT", "TOTAL", "hold", "job_in", "memory_in", "run_of", "state_of"]

LAYOUT = layout_of(5, 70)
TOTAL = 9


def memory_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the memory of this host."""
    memory = folder / "shm"
    memory.mkdir()
    monkeypatch.setattr(run_memory, "SHARED_MEMORY", memory)
    return memory


def job_in(folder: Path, **sections: Mapping[str, Any]) -> Job:
    """A job of two servers and two workers, all of which have something to keep, with its checkpoints in `folder`."""
    given: dict[str, Mapping[str, Any]] = {
        "cluster": {"servers": 2, "workers": 2},
        "compression": {"method": "topk"},
        **sections,
    }
    return Job.model_validate({**given, "checkpoint": {"dir": str(folder), **given.get("checkpoint", {})}})


def run_of(job: Job) -> Manifest:
    """The run that the steps are of."""
    return Manifest(
        job=job.name,
        settings=job.shared_settings,
        step=0,
        total_steps=TOTAL,
        servers=job.servers,
        workers=job.world.workers,
        layers=Manifest.layers_of(LAYOUT),
        groups=[(0, 1)],
        files={},
    )


def state_of(member: str, step: int) -> State:
    """A state whose every number is the step."""
    role, _, index = member.partition(" ")
    if role == "server":
        shard = Shard(LAYOUT, 2, int(index))
        values = np.full(shard.elements, step, dtype=np.float32)
        return State(Elements(shard.bounds, {"parameters": values}))
    return State(NOTHING, {"residual": np.full(LAYOUT.elements, step, dtype=np.float32)})


def hold(job: Job, *steps: int, members: tuple[str, ...] = (), generation: int = 7) -> None:
    """Have members, or all that keep something, hold steps."""
    folder = memory_of(job)
    assert folder is not None
    for member in members or keepers(job):
        held = HeldSteps(folder, member, generation, run_of(job))
        for step in steps:
            held.begin(step, lambda: state_of(member, 0))  # noqa: B023 - called at once
            held.put(step, state_of(member, step))
            held.end(step)
