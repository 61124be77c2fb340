"""A worker of `compression.thresholds`, with the arguments of `python -m taihu.worker`: its compressions take turns.

It has one with thresholds by layer and one with thresholds by group, each with a residual of its own, and all workers
of a run change from one to the other before the same steps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taihu.core.process.programs.preparation import prepare_process

if TYPE_CHECKING:
    from taihu.core.compression import GroupCompressor, Packed, Selection
    from taihu.core.coordination.plans.plan import Plan
    from taihu.core.job import Job
    from taihu.core.planner.groups import Group
    from taihu.core.planner.partition import FrameSpec
    from taihu.worker.memory.arenas import Arenas

__all__ = ["BLOCK", "THRESHOLDS", "InTurns", "turn_of"]

THRESHOLDS = ("layer", "group")
BLOCK = 4
"""Steps in a row by one of them; the first still waits for what the step before sent."""


def turn_of(step: int) -> int:
    """The place in `THRESHOLDS` of the one that compresses in a step (from 1)."""
    return (step - 1) // BLOCK % len(THRESHOLDS)


class InTurns:
    """The answers to what an exchange asks of its `GroupCompressor`, by the one whose turn it is."""

    def __init__(self, compressors: Sequence[GroupCompressor]) -> None:
        self._compressors = compressors
        self._now = compressors[0]
        self.value_type = self._now.value_type

    def adopt(self, groups: Sequence[Group]) -> None:
        """All go on with other groups."""
        for compressor in self._compressors:
            compressor.adopt(groups)

    def compress(self, group: int, step: int) -> Selection:
        """Select by the one of this step."""
        self._now = self._compressors[turn_of(step)]
        return self._now.compress(group, step)

    def pack(self, selection: Selection, frame: FrameSpec) -> Packed:
        """Pack what was selected last."""
        return self._now.pack(selection, frame)


def main() -> None:
    """Run the worker."""
    prepare_process(os.environ)
    # Nothing else is imported before the process is prepared.
    from taihu.worker.__main__ import run  # noqa: PLC0415
    from taihu.worker.exchange import making  # noqa: PLC0415

    usual = making.compressor_of

    def in_turns(job: Job, plan: Plan, arenas: Arenas) -> Any:
        jobs = [
            job.model_copy(update={"compression": job.compression.model_copy(update={"threshold": each})})
            for each in THRESHOLDS
        ]
        return InTurns([usual(each, plan, arenas) for each in jobs])

    making.compressor_of = in_turns
    run()


if __name__ == "__main__":
    main()
