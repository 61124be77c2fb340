"""The faults of a job for one of its members."""

from __future__ import annotations

from taihu.core.base.errors import ConfigError
from taihu.core.chaos.faults import FaultKind, fault_from
from taihu.core.chaos.memory import ChaosMemory
from taihu.core.chaos.points import Chaos, NoChaos
from taihu.core.chaos.process import ProcessChaos
from taihu.core.chaos.schedule import Schedule, drawn, named
from taihu.core.job.job import Job
from taihu.core.wire.base.clock import WallClock


def chaos_of(job: Job, member: str, wall: WallClock | None = None) -> Chaos:
    """The faults of `member`, whose clock is `wall`, begun; those of `NoChaos` where the job asks for none.

    Raises:
        ConfigError: there is no folder to note them in, or a fault is for a member that the job has not.
    """
    settings, members = job.chaos, job.world.names
    if not settings.is_asked_for:
        return NoChaos()
    if settings.dir is None:
        raise ConfigError("chaos.dir: not set; name a folder that all processes see, where faults are noted")
    faults = named([fault_from(text) for text in settings.faults], members, settings.seed)
    drawn_from = settings.members or members
    for name in (*(fault.member for fault in faults.values()), *drawn_from):
        if name not in members:
            raise ConfigError(f"[chaos] {name}: no member of this job; expected one of {', '.join(members)}")
    own = Schedule({name: fault for name, fault in faults.items() if fault.member == member})
    others = None
    if settings.every_s is not None:
        kinds = [FaultKind(kind) for kind in settings.kinds]
        others = drawn(kinds, drawn_from, seed=settings.seed, every_s=settings.every_s)
    chaos = ProcessChaos(member, own, ChaosMemory(settings.dir), others, listens=settings.listens, wall=wall)
    try:
        chaos.start()
    except OSError as error:
        raise ConfigError(f"chaos.dir {settings.dir}: cannot be written: {error.strerror or error}") from None
    return chaos
