"""The rules that the step protocol is given, and the phases of a group's gradients that they lead through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from taihu.core.job import Job

_FP32_BYTES: Final = 4


@dataclass(frozen=True)
class Rules:
    """Rules of all steps of a run; without any of them everything stays where it is.

    Attributes:
        drops_gradients: the memory of a group's gradients is given back when they have been summed.
        fetches: parameters are fetched or widened when they are needed, and dropped after.
        widens: what is exchanged has 16 bits; the parameters that are computed with are made of it.
        keeps: the 16-bit parameters stay, so that each group is fetched once.
        holds: nothing is pushed before all gradients of a step are there, for one that does not fit skips the step.
        clips: nothing is updated before all groups of a step have been summed, for the norm of the whole gradient.
        agrees: workers agree on skipping before they push; else whoever sums is told, and tells everybody.
        asks_early: a group may be asked for while it is summed, and comes part by part as it is updated.
        ahead_of_forward: backward may ask for what it pushed in this step already, which the next forward reads.
        bucket_elements, live_elements: room for gradients and parameters, see `taihu.core.planner.groups`.
    """

    drops_gradients: bool = False
    fetches: bool = False
    widens: bool = False
    keeps: bool = False
    holds: bool = False
    clips: bool = False
    agrees: bool = False
    asks_early: bool = True
    ahead_of_forward: bool = True
    bucket_elements: int = 0
    live_elements: int = 0


class Phase(Enum):
    """The state of a group's gradients in the present step."""

    AWAITED = "not there"
    HELD = "held back"
    SUMMING = "being summed"
    SUMMED = "summed"
    UPDATED = "updated"


PUSHED: Final = (Phase.SUMMING, Phase.SUMMED)


def rules_of(job: Job, elements: int) -> Rules:
    """The rules of a worker's steps, where so many parameters are exchanged.

    They are those of the memory that `taihu.worker.memory.arenas.arenas_of` makes for the job.
    """
    half = job.has_master
    return Rules(
        drops_gradients=job.stage.divides_gradients,
        fetches=half or job.stage.divides_parameters,
        widens=half,
        keeps=half and job.stage.keeps_halves,
        holds=job.holds_gradients,
        clips=job.clips_whole,
        agrees=job.holds_gradients and not job.servers,
        asks_early=bool(job.servers),
        # What is recomputed needs the room in an order of its own.
        ahead_of_forward=not job.updates_together and job.train.recompute == "none",
        bucket_elements=job.bucket_bytes(elements) // _FP32_BYTES,
        live_elements=job.exchange.live_bytes // _FP32_BYTES,
    )
